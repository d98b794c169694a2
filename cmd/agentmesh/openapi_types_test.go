package main

import (
	"encoding"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// publicTypes are the Go types of public answers, by the names of their schemas.
var publicTypes = map[string]reflect.Type{
	"Registered": reflect.TypeFor[wire.Registered](), "Listing": reflect.TypeFor[wire.Listing](), "Verification": reflect.TypeFor[wire.Verification](),
	"CardRecord": reflect.TypeFor[wire.CardRecord](), "KeyHistory": reflect.TypeFor[wire.KeyHistory](), "KeyChange": reflect.TypeFor[wire.KeyChange](),
	"ChangePage": reflect.TypeFor[wire.ChangePage](), "Change": reflect.TypeFor[wire.Change](), "WellKnown": reflect.TypeFor[wire.WellKnown](),
	"Tally": reflect.TypeFor[directory.NameCount](), "ARCCredentials": reflect.TypeFor[frame.Credentials](), "SignIn": reflect.TypeFor[httpapi.SignIn](),
}

// closedTypes have no other members than those of the Go type, also in later versions.
var closedTypes = []string{"Registered", "Listing", "Verification", "CardRecord", "KeyHistory", "KeyChange", "ARCCredentials"}

// goTypes makes schemas from Go types, with the comments of their source as descriptions.
type goTypes struct {
	t       *testing.T
	named   map[string]reflect.Type // by the name of the schema
	members map[string]member       // as "Listing.agents", where the Go type says too little
	asked   map[reflect.Type]bool   // the types of requests, which may leave out every member
	docs    map[string]map[string]string
}

type member struct {
	schema   object
	required bool
}

func newGoTypes(t *testing.T) goTypes {
	named := map[string]reflect.Type{}
	maps.Copy(named, publicTypes)
	return goTypes{t: t, named: named, members: map[string]member{}, asked: map[reflect.Type]bool{}, docs: map[string]map[string]string{}}
}

const modulePath = "github.com/agentmesh/agentmesh/"

// comments returns the comments of the types of a package: "Item" for a type, "Item.Peer" for a field.
func (g goTypes) comments(pkg string) map[string]string {
	dir, ok := strings.CutPrefix(pkg, modulePath)
	if !ok {
		return nil
	}
	if found, ok := g.docs[pkg]; ok {
		return found
	}
	list := map[string]string{}
	g.docs[pkg] = list
	for _, file := range parseDir(g.t, filepath.Join("..", "..", dir)) {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok || group.Tok != token.TYPE {
				continue
			}
			for _, spec := range group.Specs {
				spec := spec.(*ast.TypeSpec)
				doc := spec.Doc.Text()
				if doc == "" && len(group.Specs) == 1 {
					doc = group.Doc.Text()
				}
				list[spec.Name.Name] = plainComment(doc)
				fields, ok := spec.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, f := range fields.Fields.List {
					for _, name := range f.Names {
						list[spec.Name.Name+"."+name.Name] = plainComment(f.Doc.Text() + f.Comment.Text())
					}
				}
			}
		}
	}
	return list
}

func parseDir(t *testing.T, dir string) (files []*ast.File) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := e.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
	}
	return files
}

var docLink = regexp.MustCompile(`\[([\w.]+)\]`)

// plainComment returns a comment on one line, without links.
func plainComment(text string) string {
	return docLink.ReplaceAllString(strings.Join(strings.Fields(text), " "), "$1")
}

// schema returns the schema of the Go type with this name.
func (g goTypes) schema(name string) (object, error) {
	typ, ok := g.named[name]
	if !ok {
		return object{}, fs.ErrNotExist
	}
	properties, required := newObject(), []string{}
	g.addFields(typ, name, properties, &required)
	schema := newObject("type", "object").set("description", g.comments(typ.PkgPath())[baseName(typ)])
	if len(required) > 0 && !g.asked[typ] {
		schema.set("required", nodeOf(required))
	}
	if slices.Contains(closedTypes, name) {
		schema.set("additionalProperties", false)
	}
	return schema.set("properties", properties), nil
}

func baseName(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	return name
}

// addFields adds the fields of a struct as encoding/json sees them.
func (g goTypes) addFields(typ reflect.Type, name string, properties object, required *[]string) {
	comments := g.comments(typ.PkgPath())
	for f := range typ.Fields() {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case tag == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case f.Anonymous && tag == "" && inner.Kind() == reflect.Struct:
			g.addFields(inner, name, properties, required)
			continue
		case tag == "":
			tag = f.Name
		}
		if properties.get(tag) != nil { // an outer field hides it
			continue
		}
		isOptional := strings.Contains(options, "omit")
		given, ok := g.members[name+"."+tag]
		schema := given.schema
		if ok {
			isOptional = !given.required
		} else {
			schema = g.typeSchema(f.Type, typ.PkgPath(), !isOptional)
			if text := comments[baseName(typ)+"."+f.Name]; text != "" && schema.get("$ref") != nil {
				schema = newObject("allOf", []*yaml.Node{schema.Node}, "description", text)
			} else if schema.get("description") == nil {
				schema.set("description", text)
			}
		}
		properties.set(tag, schema)
		if !isOptional {
			*required = append(*required, tag)
		}
	}
}

// typeSchema returns the schema of a value. pkg is the package of the struct that has it. A pointer or a slice may be null
// if canBeNull is true.
func (g goTypes) typeSchema(typ reflect.Type, pkg string, canBeNull bool) object {
	isWire := pkg == modulePath+"node/wire"
	switch typ {
	case reflect.TypeFor[time.Time]():
		if isWire {
			return ref("schemas", "Time")
		}
		return newObject("type", "string", "format", "date-time")
	case reflect.TypeFor[json.RawMessage](), reflect.TypeFor[wire.Value](), reflect.TypeFor[*wire.Value]():
		return newObject()
	case reflect.TypeFor[wire.AgentID]():
		if isWire {
			return ref("schemas", "AgentID")
		}
	}
	if typ.Kind() == reflect.Pointer {
		schema := g.typeSchema(typ.Elem(), pkg, false)
		switch {
		case isWire && canBeNull && typ.Elem() == reflect.TypeFor[time.Time]():
			return ref("schemas", "OptTime")
		case canBeNull && schema.get("type") != nil:
			schema.set("nullable", true)
		case canBeNull:
			return newObject()
		}
		return schema
	}
	if typ.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return newObject("type", "string")
	}
	switch typ.Kind() {
	case reflect.String:
		return newObject("type", "string")
	case reflect.Bool:
		return newObject("type", "boolean")
	case reflect.Float32, reflect.Float64:
		return newObject("type", "number")
	case reflect.Slice, reflect.Array:
		if typ.Elem().Kind() == reflect.Uint8 {
			return newObject("type", "string", "format", "byte")
		}
		schema := newObject("type", "array", "items", g.typeSchema(typ.Elem(), pkg, false))
		if canBeNull && !isWire {
			schema.set("nullable", true)
		}
		return schema
	case reflect.Map:
		return newObject("type", "object", "additionalProperties", g.typeSchema(typ.Elem(), pkg, false))
	case reflect.Interface:
		return newObject()
	case reflect.Struct:
		return g.structSchema(typ)
	}
	return newObject("type", "integer")
}

func (g goTypes) structSchema(typ reflect.Type) object {
	if typ.Name() == "" {
		properties, required := newObject(), []string{}
		g.addFields(typ, "", properties, &required)
		return newObject("type", "object", "properties", properties)
	}
	if strings.HasPrefix(typ.Name(), "List[") { // a page
		items, _ := typ.FieldByName("Items")
		properties := newObject("items", g.typeSchema(items.Type, typ.PkgPath(), false))
		properties.set("next", newObject("type", "string", "description", "The parameter after of the next page. The last page has none."))
		return newObject("type", "object", "required", nodeOf([]string{"items"}), "properties", properties)
	}
	for name, t := range publicTypes {
		if t == typ {
			return ref("schemas", name)
		}
	}
	pkg := typ.PkgPath()[strings.LastIndex(typ.PkgPath(), "/")+1:]
	name := strings.ToUpper(pkg[:1]) + pkg[1:] + strings.ToUpper(typ.Name()[:1]) + typ.Name()[1:]
	for other, found := g.named[name]; found && other != typ; other, found = g.named[name] {
		name += "2"
	}
	g.named[name] = typ
	return ref("schemas", name)
}

// endpointNames returns the names of the endpoints in the source, by method and path, such as "GET /inbox", with their
// comments.
func endpointNames(t *testing.T) map[string][2]string {
	names := map[string][2]string{}
	methods := map[string]string{"MethodGet": "GET", "MethodPost": "POST", "MethodPut": "PUT", "MethodDelete": "DELETE", "MethodPatch": "PATCH"}
	for _, dir := range endpointDirs {
		for _, file := range parseDir(t, filepath.Join("..", "..", dir)) {
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.ValueSpec)
				if !ok || len(spec.Values) != 1 {
					return true
				}
				lit, ok := spec.Values[0].(*ast.CompositeLit)
				if !ok || len(lit.Elts) < 2 {
					return true
				}
				var parts []string
				for _, e := range lit.Elts[:2] {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						e = kv.Value
					}
					switch e := e.(type) {
					case *ast.SelectorExpr:
						parts = append(parts, methods[e.Sel.Name])
					case *ast.BasicLit:
						path, _ := strconv.Unquote(e.Value)
						parts = append(parts, path)
					}
				}
				if len(parts) == 2 {
					names[parts[0]+" "+parts[1]] = [2]string{spec.Names[0].Name, plainComment(spec.Comment.Text())}
				}
				return true
			})
		}
	}
	return names
}

// endpointDirs are the packages with operations of the owner API.
var endpointDirs = []string{
	"node/owner", "node/bridge/a2a", "node/bridge/moltspeak", "node/bridge/agentrelay/relay", "node/bridge/agentrelay/link", "cmd/internal/daemon", "directory/operator",
}

var rightTexts = map[owner.Right]string{
	owner.Read: "The owner's agent may call it.", owner.Send: "The owner's agent may call it, within the owner's rules.", owner.Decide: "For the owner alone.",
}

// ownerRoutes adds the operations of the owner API.
func (d *apiDoc) ownerRoutes() {
	names := endpointNames(d.t)
	operations := slices.Clone(d.process.OwnerOperations)
	slices.SortStableFunc(operations, func(a, b owner.Operation) int { return strings.Compare(a.Path, b.Path) })
	ids := map[string]bool{}
	for _, op := range operations {
		path := "/owner" + pathParameter.ReplaceAllString(strings.Replace(op.Path, "*", "{rest}", 1), "{$1}")
		methods := []string{op.Method}
		if op.Method == "" {
			methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
		}
		for _, method := range methods {
			found := names[method+" "+op.Path]
			name, comment := found[0], found[1]
			if name == "" {
				name = methodWords[method] + pascal(op.Path)
			}
			id := "owner" + name
			for ids[id] {
				id += pascal(strings.Split(op.Path, "/")[1])
			}
			ids[id] = true
			text := rightTexts[op.Right]
			if comment != "" {
				text += " " + strings.ToUpper(comment[:1]) + comment[1:] + "."
			}
			d.addOwnerOperation(method, path, newObject("tags", nodeOf([]string{"owner"}), "operationId", id, "summary", words(name), "description", text, "security", []*yaml.Node{}), op)
		}
	}
}

var pathParameter = regexp.MustCompile(`:(\w+)`)

var methodWords = map[string]string{"GET": "Get", "POST": "Post", "PUT": "Put", "PATCH": "Patch", "DELETE": "Delete"}

// pascal returns the words of a path in the form of a Go name.
func pascal(path string) string {
	var out strings.Builder
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return !unicode.IsLetter(r) }) {
		out.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return out.String()
}

// words returns a Go name as words: "List inbox" for ListInbox.
func words(name string) string {
	runes := []rune(name)
	var out strings.Builder
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && !unicode.IsUpper(runes[i-1]) {
			out.WriteByte(' ')
			if i+1 < len(runes) && !unicode.IsUpper(runes[i+1]) {
				r = unicode.ToLower(r)
			}
		}
		out.WriteRune(r)
	}
	return out.String()
}

func (d *apiDoc) addOwnerOperation(method, path string, out object, op owner.Operation) {
	var parameters []*yaml.Node
	for name := range pathNames(path) {
		parameters = append(parameters, newObject("name", name, "in", "path", "required", true, "schema", newObject("type", "string")).Node)
	}
	var requestBody object
	if op.Request != nil {
		requestBody = newObject("content", newObject("application/json", newObject("schema", d.types.typeSchema(op.Request, "", false))))
		d.types.asked[op.Request] = true
	}
	done := newObject("description", "Done.")
	refused := ref("responses", "OwnerRefused")
	if op.Method == "" { // the exchange of MESS, with its own errors
		refused = ref("responses", "MESSRefused")
	}
	responses := map[string]object{"4XX": refused, "5XX": refused}
	switch {
	case op.Answer != nil:
		if items, ok := op.Answer.FieldByName("Items"); ok && items.Type.Kind() == reflect.Slice {
			for _, name := range []string{"State", "After", "Count"} {
				parameters = append(parameters, ref("parameters", name).Node)
			}
		}
		schema := d.types.typeSchema(op.Answer, op.Answer.PkgPath(), false)
		responses["2XX"] = done.set("content", newObject("application/json", newObject("schema", schema)))
	default:
		responses["2XX"] = done.set("content", newObject("*/*", newObject()))
	}
	d.add(method, path, out, parameters, requestBody, responses)
}
