"""List the circles of imports that a map of rooms would make: ``cycles.py tools/rooms/map.tsv .``."""
import ast,sys
from pathlib import Path
from collections import defaultdict
root=Path(sys.argv[2])/'src/standfast'
room={}
for l in open(sys.argv[1]):
    if l.startswith('#') or not l.strip(): continue
    a,b=l.rstrip('\n').split('\t')[:2]; room[a]=b
def rel(p): return p.relative_to(root).with_suffix('').as_posix()
mods={rel(p):ast.parse(p.read_text()) for p in root.rglob('*.py')}
dot={'standfast.'+r.replace('/','.').removesuffix('.__init__') if r!='__init__' else 'standfast':r for r in mods}
dot={k.removesuffix('.__init__'):v for k,v in dot.items()}
def tops(t):
    s=set()
    for n in t.body:
        if isinstance(n,(ast.FunctionDef,ast.AsyncFunctionDef,ast.ClassDef)): s.add(n.name)
        elif isinstance(n,(ast.Assign,ast.AnnAssign)):
            for x in ast.walk(n):
                if isinstance(x,ast.Name) and isinstance(x.ctx,ast.Store): s.add(x.id)
    return s
T={r:tops(t) for r,t in mods.items()}
def istc(n): return isinstance(n,ast.If) and 'TYPE_CHECKING' in ast.unparse(n.test)
def origin(m,a,depth=0):
    if a in T[m] or depth>8: return m
    for n in mods[m].body:
        if isinstance(n,ast.ImportFrom) and n.module and n.module.startswith('standfast'):
            for x in n.names:
                if (x.asname or x.name)==a:
                    if f'{n.module}.{x.name}' in dot and not (n.module in dot and x.name in T[dot[n.module]]): return dot[f'{n.module}.{x.name}']
                    if n.module in dot: return origin(dot[n.module],x.name,depth+1)
    return m
edges=defaultdict(set)
for r,t in mods.items():
    for n in t.body:
        if isinstance(n,ast.ImportFrom) and n.module and n.module.startswith('standfast'):
            for x in n.names:
                if n.module in dot and x.name in T[dot[n.module]]: d=dot[n.module]
                elif f'{n.module}.{x.name}' in dot: d=dot[f'{n.module}.{x.name}']
                elif n.module in dot: d=origin(dot[n.module],x.name)
                else: continue
                if d!=r: edges[r].add(d)
tgt=lambda r: room.get(r,r)
g=defaultdict(lambda: defaultdict(list))
for a,ds in edges.items():
    for d in ds:
        if tgt(a)!=tgt(d): g[tgt(a)][tgt(d)].append((a,d))
# package __init__ implicit import: importing pkg/x runs pkg/__init__
def scc(g):
    idx={};low={};st=[];out=[];sys.setrecursionlimit(9999)
    def v(n):
        idx[n]=low[n]=len(idx);st.append(n)
        for o in g.get(n,()):
            if o not in idx: v(o);low[n]=min(low[n],low[o])
            elif o in st: low[n]=min(low[n],idx[o])
        if low[n]==idx[n]:
            i=st.index(n);c=st[i:];del st[i:]
            if len(c)>1: out.append(c)
    for n in list(g): 
        if n not in idx: v(n)
    return out
full={a:dict(b) for a,b in g.items()}
nodes=set(map(tgt,mods))
for n in (nodes if '--implicit' in sys.argv else ()):
    # implicit parents
    parts=n.split('/')
    for i in range(1,len(parts)):
        p='/'.join(parts[:i])+'/__init__'
        if p in nodes and p!=n: full.setdefault(n,{}).setdefault(p,[]).append(('(implicit)',p))
for c in scc(full):
    c=set(c); print('CYCLE',sorted(c))
    for a in sorted(c):
        for b in sorted(full.get(a,{})):
            if b in c: print('   ',a,'->',b,':',' '.join(f'{x}->{y}' for x,y in full[a][b])[:300])
