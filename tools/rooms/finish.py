"""Mend by hand what merging cannot know; run after ``merge.py``, before ``make format``."""
import pathlib
R=pathlib.Path.cwd()
def sub(f,a,b):
    p=R/f; s=p.read_text()
    if a not in s: print('post: missing',f,a[:40]); return
    p.write_text(s.replace(a,b))
sub('src/standfast/locks/line.py','    Alive = Callable[[Entry], bool]','    Alive: TypeAlias = "Callable[[Entry], bool]"')
import re
def regex(f,a,b):
    p=R/f; s=p.read_text(); n=re.sub(a,b,s,flags=re.M)
    if n==s: print('post: no match',f,a[:50])
    p.write_text(n)
for f in ('flows/inline','flows/task'):
    regex(f'src/standfast/{f}.py', r'^(    from standfast\.flows\.server import Server)$', r'\1  # noqa: TC004 -- none of this is ever read from data')
regex('src/standfast/flows/inline.py', r'^(    from standfast\.flows\.arbiter\.protocol import [^\n]*Turn)$', r'\1  # noqa: TC004 -- none of this is ever read from data')
regex('src/standfast/workflows/messages.py', r'^(    from standfast\.workflows\.context_state import clear_execution, clear_run)$', r'\1  # noqa: PLC0415 -- contexts need children, which need this')
import shutil,subprocess
if (R/'src/standfast/transports/chat/page').exists():
    (R/'src/standfast/web/chat').mkdir(parents=True,exist_ok=True)
    shutil.move(R/'src/standfast/transports/chat/page', R/'src/standfast/web/chat/page')
for d in ('transports/chat','transports'):
    try: (R/'src/standfast'/d).rmdir()
    except OSError as e: print('post:',e)
for f in subprocess.run(['git','ls-files','--cached','--others','--exclude-standard'],cwd=R,capture_output=True,text=True).stdout.split():
    p=R/f
    if p.is_file() and p.suffix in('.py','.md','.toml') :
        s=p.read_text()
        n=s.replace('transports/chat/page','web/chat/page')
        if n!=s: p.write_text(n)
regex('tests/unit/test_events.py', r'events\._hooks', 'events')
