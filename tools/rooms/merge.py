"""Merge modules into the rooms of a map, and rewrite whoever imports them: a tool for one large move.

``python tools/rooms/merge.py tools/rooms/map.tsv . [room ...]`` changes the work tree in place; ``--dry`` only lists the
clashes of names. ``map.tsv`` has each module of today and its room, ``map.names`` the new names of what would clash.
``cycles.py`` lists the circles of imports that a map would make; ``finish.py`` mends by hand what no rule covers.
"""
from __future__ import annotations
import ast, re, sys, subprocess, textwrap
from pathlib import Path
from collections import defaultdict, Counter

PKG = "standfast"
INIT = {
 "flows/arbiter": '"""Who runs next on a key: in memory for a sole server, in the store for several."""\n',
 "stores/remote": '"""What backends over a network share: planning, writing, subscriptions."""\n',
 "testing/conformance": '"""The contracts of stores, locks, run locks and workflows as test suites."""\n',
 "workflows/schedules": '"""Schedules: what they are, when they fall due, and the ticker that starts their runs."""\n',
}
class Mod:
    def __init__(s, path: Path, src: Path):
        s.path = path
        rel = path.relative_to(src).with_suffix("")
        s.rel = rel.as_posix()                       # locks/driving/hold
        s.dotted = dotted(s.rel)
        s.is_pkg = path.name == "__init__.py"
        s.text = path.read_text()
        s.tree = ast.parse(s.text)
        s.lines = s.text.splitlines(keepends=True)

def dotted(rel: str) -> str:
    parts = [PKG, *rel.split("/")]
    if parts[-1] == "__init__": parts.pop()
    return ".".join(parts)

def is_tc(node): return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)

def bound_names(stmts):
    """names bound at top level by non-import statements"""
    out = []
    for n in stmts:
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): out.append(n.name)
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                out += [x.id for x in ast.walk(t) if isinstance(x, ast.Name)]
        elif isinstance(n, (ast.AnnAssign, ast.AugAssign)) and isinstance(n.target, ast.Name): out.append(n.target.id)
        elif isinstance(n, (ast.If, ast.Try, ast.With, ast.For)):
            out += bound_names(n.body); out += bound_names(getattr(n, "orelse", []))
            for h in getattr(n, "handlers", []): out += bound_names(h.body)
    return list(dict.fromkeys(out))

class Imp:
    """one imported binding"""
    def __init__(s, module, attr, alias, tc): s.module, s.attr, s.alias, s.tc = module, attr, alias, tc
    @property
    def binding(s): return s.alias or s.attr or s.module.split(".")[0]

def parse_imports(stmts, tc):
    out = []
    for n in stmts:
        if isinstance(n, ast.ImportFrom):
            assert n.level == 0
            for a in n.names: out.append(Imp(n.module, a.name, a.asname, tc))
        elif isinstance(n, ast.Import):
            for a in n.names: out.append(Imp(a.name, None, a.asname, tc))
    return out

# ---- scope aware references -----------------------------------------------------------------
class Refs(ast.NodeVisitor):
    """collect Name nodes that refer to module globals: self.found[name] -> [nodes]; attrs[(name,attr)] -> [Attribute nodes]"""
    def __init__(s):
        s.scopes = []; s.found = defaultdict(list); s.attrs = defaultdict(list); s.shadow = defaultdict(set); s.bare = defaultdict(list)
    def is_global(s, name):
        for kind, names in reversed(s.scopes):
            if name in names: return False
        return True
    def visit_Name(s, n):
        if s.is_global(n.id): s.found[n.id].append(n); s.bare[n.id].append(n)
    def visit_Attribute(s, n):
        if isinstance(n.value, ast.Name):
            if s.is_global(n.value.id):
                s.attrs[(n.value.id, n.attr)].append((n, list(s.scopes)))
                s.found[n.value.id].append(n.value)
            return
        s.generic_visit(n)
    def local_names(s, node):
        names, glob = set(), set()
        args = node.args
        for a in [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]:
            if a: names.add(a.arg)
        def walk(n):
            for c in ast.iter_child_nodes(n):
                if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    names.add(c.name); continue
                if isinstance(c, ast.Lambda): continue
                if isinstance(c, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                    # walrus leaks, ignore others
                    for x in ast.walk(c):
                        if isinstance(x, ast.NamedExpr): names.add(x.target.id)
                    continue
                if isinstance(c, ast.Name) and isinstance(c.ctx, (ast.Store, ast.Del)): names.add(c.id)
                elif isinstance(c, ast.Global): glob.update(c.names)
                elif isinstance(c, ast.ExceptHandler) and c.name: names.add(c.name)
                elif isinstance(c, (ast.Import, ast.ImportFrom)):
                    for a in c.names: names.add((a.asname or a.name).split(".")[0])
                elif isinstance(c, (ast.MatchAs, ast.MatchStar)) and c.name: names.add(c.name)
                elif isinstance(c, ast.MatchMapping) and c.rest: names.add(c.rest)
                walk(c)
        if isinstance(node, ast.Lambda): 
            for x in ast.walk(node.body):
                if isinstance(x, ast.NamedExpr): names.add(x.target.id)
        else:
            for st in node.body:
                walk(ast.Module(body=[st], type_ignores=[]))
        return names - glob
    def func(s, n):
        for d in getattr(n, "decorator_list", []): s.visit(d)
        a = n.args
        for d in [*a.defaults, *[k for k in a.kw_defaults if k]]: s.visit(d)
        for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg]:
            if x and x.annotation: s.visit(x.annotation)
        if getattr(n, "returns", None): s.visit(n.returns)
        saved = s.scopes
        s.scopes = [sc for sc in s.scopes if sc[0] != "class"] + [("func", s.local_names(n))]
        for st in (n.body if isinstance(n.body, list) else [n.body]): s.visit(st)
        s.scopes = saved
    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = func
    def visit_ClassDef(s, n):
        for d in n.decorator_list: s.visit(d)
        for b in n.bases: s.visit(b)
        for k in n.keywords: s.visit(k)
        names = set(bound_names(n.body))
        saved = s.scopes
        s.scopes = [sc for sc in s.scopes if sc[0] != "class"] + [("class", names)]
        for st in n.body: s.visit(st)
        s.scopes = saved
    def comp(s, n):
        names = set()
        for g in n.generators: names |= {x.id for x in ast.walk(g.target) if isinstance(x, ast.Name)}
        s.visit(n.generators[0].iter)
        saved = s.scopes
        s.scopes = s.scopes + [("func", names)]
        for i, g in enumerate(n.generators):
            if i: s.visit(g.iter)
            for c in g.ifs: s.visit(c)
        if isinstance(n, ast.DictComp): s.visit(n.key); s.visit(n.value)
        else: s.visit(n.elt)
        s.scopes = saved
    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = comp

def offsets(text):
    out = [0]
    for l in text.encode().splitlines(keepends=True): out.append(out[-1] + len(l))
    return out

def apply_edits(text, edits):
    b = text.encode()
    for start, end, new in sorted(set(edits), reverse=True):
        b = b[:start] + new.encode() + b[end:]
    return b.decode()

def span(offs, n): return offs[n.lineno-1] + n.col_offset, offs[n.end_lineno-1] + n.end_col_offset

def main():
    mapfile, root, *prefixes = [a for a in sys.argv[1:] if a != "--dry"]
    root = Path(root); src = root / "src" / PKG
    overrides = {}
    of = Path(mapfile).with_suffix(".names")
    if of.exists():
        for l in of.read_text().splitlines():
            if l.strip() and not l.startswith("#"):
                a, b = l.split("\t"); overrides[a] = b
    room = {}
    for l in Path(mapfile).read_text().splitlines():
        if l.startswith("#") or not l.strip(): continue
        a, b = l.split("\t")[:2]
        room[a] = b
    mods = {}
    for p in sorted(src.rglob("*.py")):
        if "__pycache__" in p.parts: continue
        m = Mod(p, src); mods[m.rel] = m
    target = {}
    for rel in mods:
        t = room.get(rel, rel)
        if prefixes and not any(t == p or t.startswith(p + "/") or t == p for p in prefixes): t = rel
        target[rel] = t
    missing = [r for r in mods if r not in room]
    if missing: print("not in map:", missing)
    by_dotted = {m.dotted: m for m in mods.values()}
    groups = defaultdict(list)
    for rel in [*room, *mods]:
        if rel in mods and mods[rel] not in groups[target[rel]]: groups[target[rel]].append(mods[rel])
    changed = {t: g for t, g in groups.items() if not (len(g) == 1 and g[0].rel == t)}
    print(f"{len(mods)} modules -> {len(groups)}; {len(changed)} rooms change")
    # final names: (module dotted, name) -> final name
    final = {}
    body_names = {}
    tops = {}
    for m in mods.values():
        tops[m.rel] = bound_names([n for n in m.tree.body if not is_tc(n)])
        tcb = []
        for n in m.tree.body:
            if is_tc(n): tcb += bound_names(n.body)
        tops[m.rel] += [x for x in tcb if x not in tops[m.rel]]
    problems = []
    dropped = set()  # (rel, name) duplicates with identical text
    twins = []
    for t, g in changed.items():
        owners = defaultdict(list)
        for m in g:
            for name in tops[m.rel]:
                if name == "__all__": continue
                owners[name].append(m)
        for name, ms in owners.items():
            if len(ms) == 1: continue
            defs = {}
            for m in ms:
                for n in [x for x in m.tree.body if not is_tc(x)] + [x for y in m.tree.body if is_tc(y) for x in y.body]:
                    if name in bound_names([n]): defs[m.rel] = ast.unparse(n); break
            if len(set(defs.values())) == 1 and not isinstance(ms[0].tree, type(None)):
                twins.append((t, name, [m.rel for m in ms]))
                continue
            rest = [m for m in ms if f"{m.rel}:{name}" not in overrides]
            keep = max(rest or ms, key=lambda m: (sum(1 for o in mods.values() for i in imports_cache(o) if i.module == m.dotted and i.attr == name), m is g[0]))
            for m in ms:
                key = f"{m.rel}:{name}"
                if key in overrides: final[(m.dotted, name)] = overrides[key]; continue
                if m is keep or len(rest) == 1: continue
                stem = m.path.stem if not m.is_pkg else m.path.parent.name
                stem = stem.strip("_")
                if name.startswith("_"): new = f"_{stem}{name}" if not name[1].isupper() else f"_{''.join(w.title() for w in stem.split('_'))}{name[1:]}"
                elif name.isupper(): new = f"{stem.upper()}_{name}"
                elif name[0].isupper(): new = "".join(w.title() for w in stem.split("_")) + name
                else: new = f"{stem}_{name}"
                if name.isupper() or (name.startswith("_") and name[1:].isupper()):
                    new = ("_" if name.startswith("_") else "") + stem.upper() + "_" + name.strip("_")
                final[(m.dotted, name)] = new
                print(f"  clash in {t}: {key} -> {new}   (kept by {keep.rel})")
    for k, v in overrides.items():
        rel, name = k.split(":")
        if rel in mods: final[(mods[rel].dotted, name)] = v
    def final_name(mod_dotted, name): return final.get((mod_dotted, name), name)
    def resolve(mod_dotted, attr):
        """-> ('mod', Mod) if it names a module, or ('name', Mod, attr) following re-exports inside the package, or None"""
        if attr is None:
            return ("mod", by_dotted[mod_dotted]) if mod_dotted in by_dotted else None
        sub = f"{mod_dotted}.{attr}"
        m = by_dotted.get(mod_dotted)
        if m and attr in tops[m.rel]: return ("name", m, attr)
        if sub in by_dotted: return ("mod", by_dotted[sub])
        if m: return ("name", m, attr)
        return None
    def origin(m, attr, seen=()):
        """follow re-exports to the defining module"""
        if attr in tops[m.rel] or (m.rel, attr) in seen: return m, attr
        for i in imports_cache(m):
            if i.binding == attr and i.module.startswith(PKG):
                r = resolve(i.module, i.attr)
                if r and r[0] == "name": return origin(r[1], r[2], (*seen, (m.rel, attr)))
        return m, attr
    ndotted = lambda rel: dotted(target[rel])

    outputs = {}
    for t, g in groups.items():
        if t not in changed: continue
        here = dotted(t)
        # order
        deps = {m.rel: set() for m in g}
        for m in g:
            for i in imports_cache(m):
                if i.tc or not i.module.startswith(PKG): continue
                r = resolve(i.module, i.attr)
                if not r: continue
                o = r[1] if r[0] == "mod" else origin(r[1], r[2])[0]
                if o.rel in deps and o.rel != m.rel: deps[m.rel].add(o.rel)
        order, left = [], [m.rel for m in g]
        # __init__ last unless depended on
        left.sort(key=lambda r: (mods[r].is_pkg, ))
        while left:
            for r in left:
                if not (deps[r] - set(order) ): break
            else:
                r = min(left, key=lambda r: len(deps[r] - set(order)))
                print(f"  circle inside {t}: {r} needs {deps[r]-set(order)}")
            left.remove(r); order.append(r)
        for tt, name, rels in twins:
            if tt == t:
                for r in sorted(rels, key=order.index)[1:]: dropped.add((r, name))
        table = {}      # binding -> canonical
        runtime, typing_, extra_tc = {}, {}, []
        local_final = {}
        for m in g:
            for name in tops[m.rel]: local_final[final_name(m.dotted, name)] = ("local",)
        bodies, docs = [], {}
        for rel in order:
            m = mods[rel]
            offs = offsets(m.text)
            refs = Refs()
            for n in m.tree.body: refs.visit(n)
            edits = []
            renames = {}   # global name -> new
            for name in tops[rel]:
                fn = final_name(m.dotted, name)
                if fn != name: renames[name] = fn
            modattrs = {}  # module binding -> Mod (same target)
            for i in imports_cache(m):
                b = i.binding
                if not i.module.startswith(PKG + ".") and i.module != PKG:
                    canon = ("ext", i.module, i.attr)
                    want = b
                else:
                    r = resolve(i.module, i.attr)
                    if r is None: canon, want = ("ext", i.module, i.attr), b
                    elif r[0] == "mod":
                        if target[r[1].rel] == t:
                            modattrs[b] = r[1]; continue
                        canon, want = ("mod", ndotted(r[1].rel)), b
                    else:
                        om, oa = origin(r[1], r[2])
                        fn = final_name(om.dotted, oa)
                        if target[om.rel] == t:
                            if b != fn: renames[b] = fn
                            continue
                        if om.path.stem.startswith("_") and r[1].is_pkg and target[r[1].rel] == r[1].rel: om, oa, fn = r[1], r[2], r[2]
                        # import from where the origin lives now, unless the import named another room on purpose (re-export)
                        canon = ("name", ndotted(om.rel), fn)
                        want = b if i.alias else fn
                        if want != b: renames[b] = want
                if i.attr is None and not i.alias:
                    canon = ("ext", i.module, None)
                k = want
                if i.attr is None and not i.alias and "." in i.module: k = i.module
                if (k in table and table[k] != canon) or k in local_final:
                    # clash of binding
                    base = (canon[1].split(".")[-1] if canon[0] != "mod" else canon[1].split(".")[-2])
                    k = f"{want}_of_{base}" if not want[0].isupper() else f"{base.title().replace('_','')}{want}"
                    print(f"  import clash in {t}: {rel} {want} -> {k}")
                    renames[b] = k
                table[k] = canon
                (typing_ if i.tc else runtime)[k] = canon
            for old, new in renames.items():
                for n in refs.found.get(old, []):
                    s0, e0 = span(offs, n); edits.append((s0, e0, new))
            for (b, attr), nodes in refs.attrs.items():
                if b in modattrs:
                    om, oa = origin(modattrs[b], attr)
                    fn = final_name(om.dotted, oa)
                    for n, scopes in nodes:
                        if any(fn in names for _, names in scopes): problems.append(f"{rel}:{n.lineno}: {b}.{attr} would be shadowed")
                        s0, e0 = span(offs, n); edits.append((s0, e0, fn))
                        edits = [x for x in edits if not (x[0] == s0 and x[1] < e0)]
            for b in modattrs:
                used = [n for n in refs.bare.get(b, [])]
                if used: problems.append(f"{rel}:{used[0].lineno}: module {b} used as an object in its own room {t}")
            # definition names themselves
            for n in m.tree.body + [x for y in m.tree.body if is_tc(y) for x in y.body]:
                if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and n.name in renames:
                    line = n.lineno - 1
                    kw = {ast.FunctionDef: "def ", ast.AsyncFunctionDef: "async def ", ast.ClassDef: "class "}[type(n)]
                    s0 = offs[line] + n.col_offset + len(kw)
                    edits.append((s0, s0 + len(n.name.encode()), renames[n.name]))
            # local imports of the own room, and of moved modules
            for node in ast.walk(m.tree):
                if isinstance(node, ast.ImportFrom) and node not in m.tree.body and node.module and node.module.startswith(PKG) and not in_tc(m, node):
                    keep = defaultdict(list)
                    for a in node.names:
                        r = resolve(node.module, a.name)
                        if r and r[0] == "name":
                            om, oa = origin(r[1], r[2]); fn = final_name(om.dotted, oa)
                            if target[om.rel] == t:
                                if a.asname and a.asname != fn: problems.append(f"{rel}:{node.lineno}: local import alias {a.asname}")
                                continue
                            keep[ndotted(om.rel)].append(fn + (f" as {a.asname}" if a.asname else (f" as {a.name}" if fn != a.name else "")))
                        elif r and r[0] == "mod":
                            nd = ndotted(r[1].rel)
                            if target[r[1].rel] == t: problems.append(f"{rel}:{node.lineno}: local module import of own room"); 
                            keep[nd.rpartition(".")[0]].append(nd.rpartition(".")[2] + (f" as {a.asname or a.name}" if (a.asname or a.name) != nd.rpartition(".")[2] else ""))
                        else: keep[node.module].append(a.name + (f" as {a.asname}" if a.asname else ""))
                    s0, e0 = span(offs, node)
                    indent = " " * node.col_offset
                    new = f"\n{indent}".join(f"from {k} import {', '.join(v)}" for k, v in keep.items())
                    if not new: new = "pass  # was a local import"
                    edits.append((s0, e0, new))
            # cut imports, docstring, tc
            doc = ast.get_docstring(m.tree, clean=True) or ""
            docs[rel] = doc
            cut = []
            for idx, n in enumerate(m.tree.body):
                if idx == 0 and isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str):
                    cut.append(n)
                elif isinstance(n, (ast.Import, ast.ImportFrom)): cut.append(n)
                elif is_tc(n):
                    cut.append(n)
                    for x in n.body:
                        if not isinstance(x, (ast.Import, ast.ImportFrom)):
                            if any((rel, nm) in dropped for nm in bound_names([x])): continue
                            s0, e0 = offs[x.lineno-1], offs[x.end_lineno]
                            inner = [e for e in edits if s0 <= e[0] < e0]
                            txt = apply_edits(m.text.encode()[s0:e0].decode(), [(a-s0, b-s0, c) for a, b, c in inner])
                            # comment lines / docstring following are separate statements, kept
                            extra_tc.append(txt)
                elif any((rel, nm) in dropped for nm in bound_names([n])): cut.append(n)
            rng = []
            for n in cut:
                first = min([n.lineno] + [d.lineno for d in getattr(n, "decorator_list", [])])
                rng.append((offs[first-1], offs[n.end_lineno] if n.end_lineno < len(offs) else len(m.text.encode())))
            final_edits = [e for e in edits if not any(a <= e[0] < b for a, b in rng)] + [(a, b, "") for a, b in rng]
            body = apply_edits(m.text, final_edits)
            bodies.append((rel, body.strip("\n")))
        # __all__ handling
        alls = []
        newb = []
        for rel, body in bodies:
            mm = re.search(r"^__all__\s*(:[^=]*)?=\s*\[.*?\]\n?", body, re.S | re.M)
            if mm:
                alls.append((rel, mm.group(0)));
                body = (body[:mm.start()] + body[mm.end():]).strip("\n")
            newb.append((rel, body))
        alls = [(r, a) for r, a in alls if mods[r].is_pkg or len(g) == 1]
        head_rel = pick_head(t, g)
        out = []
        hd = docs[head_rel] or next((d for d in docs.values() if d), "")
        out.append('"""' + hd + ('\n"""' if "\n" in hd else '"""'))
        out.append("\nfrom __future__ import annotations\n")
        def render(imps, indent=""):
            lines = []
            for k, c in sorted(imps.items(), key=lambda x: str(x)):
                if c[0] == "ext" and c[1] == "__future__": continue
                if c[0] == "ext":
                    if c[2] is None: lines.append(f"import {c[1]}" + (f" as {k}" if k not in (c[1], c[1].split(".")[0]) else ""))
                    else: lines.append(f"from {c[1]} import {c[2]}" + (f" as {k}" if k != c[2] else ""))
                elif c[0] == "mod" and "." not in c[1]:
                    lines.append(f"import {c[1]}" + (f" as {k}" if k != c[1] else ""))
                elif c[0] == "mod":
                    p, _, n = c[1].rpartition("."); lines.append(f"from {p} import {n}" + (f" as {k}" if k != n else ""))
                else: lines.append(f"from {c[1]} import {c[2]}" + (f" as {k}" if k != c[2] else ""))
            return "\n".join(indent + l for l in lines)
        typing_ = {k: v for k, v in typing_.items() if k not in runtime}
        out.append(render(runtime))
        if typing_ or extra_tc:
            if "TYPE_CHECKING" not in runtime: out.append("from typing import TYPE_CHECKING")
            out.append("\nif TYPE_CHECKING:\n" + render(typing_, "    ") + ("\n\n" + "".join(extra_tc) if extra_tc else ""))
        if alls: out.append("\n" + "".join(a for _, a in alls))
        many = len([b for b in newb if b[1]]) > 1
        for rel, body in newb:
            if not body: continue
            d = docs[rel]
            if many:
                first, _, rest = d.partition("\n")
                title = first.strip().rstrip(".")
                title = title[0].lower() + title[1:] if title[:2] != title[:2].upper() and title else title
                bar = f"# --- {title} "
                if len(bar) > 116: bar = "\n".join("# " + w for w in textwrap.wrap(f"--- {title} ---", 114)); 
                else: bar = bar + "-" * (117 - len(bar))
                extra = ""
                if rel != head_rel and rest.strip(): extra = "\n#\n" + "\n".join(("# " + l).rstrip() for l in rest.strip().splitlines())
                out.append(f"\n\n{bar}{extra}\n\n{body}\n")
            else: out.append("\n\n" + body + "\n")
        outputs[t] = "\n".join(out) + "\n"
    # write
    if problems:
        print("PROBLEMS"); print("\n".join(problems))
    if "--dry" in sys.argv: return
    # path rewriting for everything else
    pathmap = {}   # old dotted -> new dotted
    filemap = {}
    for rel, m in mods.items():
        if target[rel] != rel and m.dotted not in {dotted(t) for t in groups}:
            pathmap[m.dotted] = dotted(target[rel])
            filemap[f"src/{PKG}/{rel}.py"] = f"src/{PKG}/{target[rel]}.py"
    for t, g in changed.items():
        for m in g:
            if m.path.exists(): m.path.unlink()
    for t, text in outputs.items():
        p = src / f"{t}.py"; p.parent.mkdir(parents=True, exist_ok=True)
        pkg = p.with_suffix("")
        p.write_text(text)
    for folder in {p.parent for p in src.rglob("*.py")}:
        if not (folder / "__init__.py").exists(): (folder / "__init__.py").write_text(INIT.get(folder.relative_to(src).as_posix(), "TODO"))
    # renamed publics in importers: rewrite from-imports by AST in all other python files
    files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True, text=True).stdout.split("\n")
    for f in files:
        p = root / f
        if not f or not p.is_file() or p.suffix not in {".py", ".md", ".toml", ".ini", ".cfg", ".txt", ".in", ".rst", ".sql", ".lua", ""} and f not in ("Makefile",): continue
        if p.suffix == ".py":
            relsrc = p.relative_to(src).with_suffix("").as_posix() if p.is_relative_to(src) else None
            if relsrc in outputs: rewrite_text(p, pathmap, filemap); continue
            rewrite_imports(p, resolve, origin, final_name, ndotted, target, by_dotted, mods)
            rewrite_text(p, pathmap, filemap)
        else: rewrite_text(p, pathmap, filemap)

def rewrite_text(p, pathmap, filemap):
    try: s = p.read_text()
    except UnicodeDecodeError: return
    o = s
    keys = sorted(pathmap, key=len, reverse=True)
    if any(k in s for k in keys):
        rx = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, keys)) + r")(?![\w])(?!\.\w+\.(?:py|md))")
        # a key that is a package prefix of other things must only match when it is the module itself: longest first does that
        s = rx.sub(lambda m: pathmap[m[1]], s)
    fk = sorted(filemap, key=len, reverse=True)
    if f"src/{PKG}/" in s:
        rx = re.compile("(" + "|".join(map(re.escape, fk)) + ")")
        if fk: s = rx.sub(lambda m: filemap[m[1]], s)
    if "/tests/" in str(p) or "/tools/" in str(p):
        bare = {k.removeprefix(f"src/{PKG}/"): v.removeprefix(f"src/{PKG}/") for k, v in filemap.items() if "/" in k.removeprefix(f"src/{PKG}/")}
        rx = re.compile('(?<=["/])(' + "|".join(map(re.escape, sorted(bare, key=len, reverse=True))) + ')(?=["`)])')
        if bare: s = rx.sub(lambda m: bare[m[1]], s)
    if s != o: p.write_text(s)

def rewrite_imports(p, resolve, origin, final_name, ndotted, target, by_dotted, mods):
    text = p.read_text()
    if PKG not in text: return
    tree = ast.parse(text)
    offs = offsets(text); edits = []
    refs = None
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and (node.module == PKG or node.module.startswith(PKG + ".")):
            keep = defaultdict(list); ch = False
            for a in node.names:
                r = resolve(node.module, a.name)
                if r is None or node.module == PKG and r[0] == "name":
                    keep[node.module].append(a.name + (f" as {a.asname}" if a.asname else "")); continue
                if r[0] == "name":
                    om, oa = origin(r[1], r[2]); fn = final_name(om.dotted, oa)
                    # keep importing from a package's face if the face itself stays
                    if target[r[1].rel] == r[1].rel and r[1].is_pkg: nd, fn2 = node.module, a.name
                    else: nd, fn2 = ndotted(om.rel), fn
                    if nd != node.module or fn2 != a.name: ch = True
                    keep[nd].append(fn2 + (f" as {a.asname}" if a.asname else (f" as {a.name}" if fn2 != a.name else "")))
                else:
                    nd = ndotted(r[1].rel); par, _, leaf = nd.rpartition(".")
                    want = a.asname or a.name
                    if nd != f"{node.module}.{a.name}": ch = True
                    keep[par].append(leaf + (f" as {want}" if want != leaf else ""))
            if ch:
                s0, e0 = span(offs, node); indent = " " * node.col_offset
                edits.append((s0, e0, f"\n{indent}".join(f"from {k} import {', '.join(v)}" for k, v in keep.items())))
    if edits: p.write_text(apply_edits(text, edits))

_ic = {}
def imports_cache(m):
    if m.rel not in _ic:
        out = parse_imports([n for n in m.tree.body], False)
        for n in m.tree.body:
            if is_tc(n): out += parse_imports(n.body, True)
        _ic[m.rel] = out
    return _ic[m.rel]

def in_tc(m, node):
    return any(is_tc(n) and n.lineno <= node.lineno <= n.end_lineno for n in m.tree.body)

def pick_head(t, g):
    stem = t.split("/")[-1]
    if stem == "__init__":
        for m in g:
            if m.is_pkg: return m.rel
    for m in g:
        if m.path.stem == stem: return m.rel
    return max(g, key=lambda m: len(m.text)).rel

main()
