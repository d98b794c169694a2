package apitest

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"strings"
	"testing"
	"text/template/parse"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// sharedFuncs have the types of the functions that every page may call. All texts that they return are strings here.
var sharedFuncs = map[string]any{
	"text": func(any) string { return "" }, "line": func(any) string { return "" }, "id": func(any) string { return "" },
	"words": func(any) string { return "" }, "hash": func(string) string { return "" }, "json": func(json.RawMessage) string { return "" },
	"face": func(any, any) string { return "" }, "asset": func(string) string { return "" }, "page": func(string) string { return "" },
	"time": func(time.Time) string { return "" }, "left": func(time.Time) string { return "" }, "set": func(time.Time) bool { return false },
	"printf": fmt.Sprintf, "urlquery": func(any) string { return "" }, "not": func(any) bool { return false }, "len": func(any) int { return 0 },
	"eq": func(any, ...any) bool { return false }, "ne": func(any, any) bool { return false }, "gt": func(any, any) bool { return false },
	"and": fmt.Sprint, "or": fmt.Sprint, "index": fmt.Sprint, // their results have the types of their arguments
}

// CheckPage checks the templates of a page, in all branches: that the data has every field that they read, and that
// every function gets what it takes. data is a [httpapi.View], or the data of a public page; a field Data of it has a value
// of the type that the page gets. What another interface holds is not checked.
func CheckPage(t *testing.T, files fs.FS, funcs map[string]any, data any, names ...string) {
	t.Helper()
	c := checker{t: t, trees: map[string]*parse.Tree{}, funcs: map[string]any{}, done: map[string]bool{}}
	for _, m := range []map[string]any{sharedFuncs, funcs} {
		maps.Copy(c.funcs, m)
	}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		trees, err := parse.Parse(name, string(text), "", "", c.funcs)
		if err != nil {
			t.Fatal(err)
		}
		for name, tree := range trees {
			if c.trees[name] == nil {
				c.trees[name] = tree
			}
		}
	}
	dot := reflect.TypeOf(data)
	if field := reflect.ValueOf(data).FieldByName("Data"); field.IsValid() && field.Kind() == reflect.Interface {
		c.data = reflect.TypeOf(field.Interface())
	}
	if _, ok := data.(httpapi.View); ok { // the frame adds fields
		dot = reflect.TypeFor[struct {
			httpapi.View
			HasSession bool
		}]()
	}
	found := false
	for _, start := range []string{"heading", "top", "live", "rest", "page"} {
		if c.trees[start] != nil {
			c.template(start, dot)
			found = true
		}
	}
	if !found {
		t.Errorf("%q define no part of a page", names)
	}
}

// checker finds the types of expressions. A nil type is not known.
type checker struct {
	t     *testing.T
	trees map[string]*parse.Tree
	funcs map[string]any
	data  reflect.Type // of the field Data
	done  map[string]bool
}

// scope are the variables of a template, and its dot.
type scope struct {
	tree *parse.Tree
	dot  reflect.Type
	vars map[string]reflect.Type
}

func (s scope) with(dot reflect.Type) scope {
	vars := make(map[string]reflect.Type)
	maps.Copy(vars, s.vars)
	return scope{s.tree, dot, vars}
}

func (c *checker) template(name string, dot reflect.Type) {
	tree, key := c.trees[name], fmt.Sprint(name, " ", dot)
	if tree == nil {
		c.t.Errorf("there is no template %q", name)
		return
	}
	if c.done[key] {
		return
	}
	c.done[key] = true
	c.list(tree.Root, scope{tree, dot, map[string]reflect.Type{"$": dot}})
}

func (c *checker) fail(s scope, n parse.Node, format string, args ...any) {
	c.t.Helper()
	at, _ := s.tree.ErrorContext(n)
	c.t.Errorf("%s: in %q, %s: %s", at, s.tree.Name, n, fmt.Sprintf(format, args...))
}

func (c *checker) list(l *parse.ListNode, s scope) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		switch n := n.(type) {
		case *parse.ActionNode:
			c.pipe(n.Pipe, s)
		case *parse.TemplateNode:
			c.template(n.Name, c.pipe(n.Pipe, s))
		case *parse.IfNode:
			inner := s.with(s.dot)
			c.pipe(n.Pipe, inner)
			c.list(n.List, inner)
			c.list(n.ElseList, inner)
		case *parse.WithNode:
			inner := s.with(s.dot)
			inner.dot = c.pipe(n.Pipe, inner)
			c.list(n.List, inner)
			c.list(n.ElseList, s.with(s.dot))
		case *parse.RangeNode:
			inner := s.with(s.dot)
			of := follow(c.pipe(n.Pipe, inner))
			key, elem := reflect.TypeFor[int](), reflect.Type(nil)
			switch {
			case of == nil:
			case of.Kind() == reflect.Slice || of.Kind() == reflect.Array:
				elem = of.Elem()
			case of.Kind() == reflect.Map:
				key, elem = of.Key(), of.Elem()
			default:
				c.fail(s, n.Pipe, "cannot range over %v", of)
			}
			switch inner.dot = elem; len(n.Pipe.Decl) {
			case 1:
				inner.vars[n.Pipe.Decl[0].Ident[0]] = elem
			case 2:
				inner.vars[n.Pipe.Decl[0].Ident[0]], inner.vars[n.Pipe.Decl[1].Ident[0]] = key, elem
			}
			c.list(n.List, inner)
			c.list(n.ElseList, s.with(s.dot))
		}
	}
}

// pipe returns the type of a pipeline, and sets the variables that it declares.
func (c *checker) pipe(p *parse.PipeNode, s scope) (last reflect.Type) {
	if p == nil {
		return nil
	}
	for i, cmd := range p.Cmds {
		var before []reflect.Type
		if i > 0 {
			before = []reflect.Type{last}
		}
		last = c.command(cmd, before, s)
	}
	for _, v := range p.Decl {
		s.vars[v.Ident[0]] = last
	}
	return last
}

func (c *checker) command(cmd *parse.CommandNode, before []reflect.Type, s scope) reflect.Type {
	name, isCall := cmd.Args[0].(*parse.IdentifierNode)
	if !isCall {
		if len(cmd.Args) > 1 {
			c.fail(s, cmd, "only functions take arguments")
		}
		return c.value(cmd.Args[0], s)
	}
	var args []reflect.Type
	for _, a := range cmd.Args[1:] {
		args = append(args, c.value(a, s))
	}
	args = append(args, before...)
	switch name.Ident {
	case "and", "or":
		for _, a := range args[1:] {
			if a != args[0] {
				return nil
			}
		}
		return args[0]
	case "index":
		if of := follow(args[0]); of != nil {
			return of.Elem()
		}
		return nil
	}
	f := reflect.TypeOf(c.funcs[name.Ident])
	if len(args) < f.NumIn() && !f.IsVariadic() || len(args) > f.NumIn() && !f.IsVariadic() {
		c.fail(s, cmd, "%s takes %d arguments", name.Ident, f.NumIn())
		return f.Out(0)
	}
	for i, a := range args {
		if f.IsVariadic() && i >= f.NumIn()-1 || a == nil {
			continue
		}
		in := f.In(i)
		fits := a.AssignableTo(in) || a.Kind() == reflect.Pointer && a.Elem().AssignableTo(in) || reflect.PointerTo(a).AssignableTo(in)
		if !fits {
			c.fail(s, cmd, "%s takes %v, not %v", name.Ident, in, a)
		}
	}
	return f.Out(0)
}

func (c *checker) value(n parse.Node, s scope) reflect.Type {
	switch n := n.(type) {
	case *parse.DotNode:
		return s.dot
	case *parse.FieldNode:
		return c.fields(n, s.dot, n.Ident, s)
	case *parse.VariableNode:
		t, ok := s.vars[n.Ident[0]]
		if !ok {
			c.fail(s, n, "there is no such variable")
		}
		return c.fields(n, t, n.Ident[1:], s)
	case *parse.ChainNode:
		return c.fields(n, c.value(n.Node, s), n.Field, s)
	case *parse.PipeNode:
		return c.pipe(n, s)
	case *parse.StringNode:
		return reflect.TypeFor[string]()
	case *parse.BoolNode:
		return reflect.TypeFor[bool]()
	case *parse.NumberNode:
		return nil // fits every number
	case *parse.IdentifierNode:
		return c.command(&parse.CommandNode{NodeType: parse.NodeCommand, Args: []parse.Node{n}}, nil, s)
	}
	return nil
}

func (c *checker) fields(n parse.Node, of reflect.Type, names []string, s scope) reflect.Type {
	for _, name := range names {
		of = follow(of)
		switch {
		case of == nil:
			return nil
		case of.Kind() == reflect.Map:
			of = of.Elem()
			continue
		case of.Kind() != reflect.Struct:
			c.fail(s, n, "%v has no fields", of)
			return nil
		}
		field, ok := of.FieldByName(name)
		if !ok || !field.IsExported() {
			c.fail(s, n, "%s has no field %s", strings.TrimPrefix(of.String(), "*"), name)
			return nil
		}
		if of = field.Type; name == "Data" && of.Kind() == reflect.Interface {
			of = c.data
		}
	}
	return of
}

// follow returns the type behind pointers; nil for an interface.
func follow(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && t.Kind() == reflect.Interface {
		return nil
	}
	return t
}
