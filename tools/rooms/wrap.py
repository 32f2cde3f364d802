"""Wrap comments and docstrings that a longer name has pushed past the end of the line."""
import json,subprocess,re,sys
out=json.loads(subprocess.run(['.venv/bin/ruff','check','--select','E501','--output-format','json'],capture_output=True,text=True).stdout)
byfile={}
for d in out: byfile.setdefault(d['filename'],[]).append(d['location']['row'])
item=re.compile(r'\s+[\w*, ]+: \S')
for f,rows in byfile.items():
    L=open(f).read().split('\n')
    for r in sorted(rows,reverse=True):
        i=r-1
        while len(L[i])>120:
            line=L[i]
            ind=re.match(r'\s*(#:?\s+)?(- )?',line).group(0)
            cut=line.rfind(' ',0,121)
            head,rest=line[:cut],line[cut+1:]
            L[i]=head
            nxt=L[i+1] if i+1<len(L) else ''
            nind=re.match(r'\s*(#:?\s+)?',nxt).group(0)
            cont=' '*len(ind)+('    ' if item.match(line) and '#' not in ind else '') if '- ' in ind or item.match(line) else ind
            if nxt.strip() and nxt.strip()!='#' and not nxt.strip().startswith(('"""','- ','>>>','..')) and not item.match(nxt) and (nind==cont or nind==ind) and not nxt.startswith(nind+' '):
                L[i+1]=nind+rest+' '+nxt[len(nind):]; i+=1
            else:
                L.insert(i+1,cont+rest); break
    open(f,'w').write('\n'.join(L))
