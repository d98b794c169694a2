package main

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
)

// The files of the API's description. The first two are written by hand, the third is made from them, from the
// operations of the owner API and from Go types.
const (
	apiRoutes = "../../node/httpapi/openapi.txt"
	apiShapes = "../../node/httpapi/openapi-shapes.txt"
	apiFile   = "../../node/httpapi/openapi.yaml"
)

// TestDocsOpenAPI generates openapi.yaml and compares it with the file. With -update, it writes the file.
//
// A line of openapi.txt that begins with == starts a section: the tag, who may call, the response for each error status
// (* for the others), and the statuses that its operations have. The lines up to the first operation describe the tag.
// An operation has method, path, id, the statuses that differ (+ adds some) and a summary. The indented lines below it
// are its description, then parameters (?), body (<, or <? for an optional one) and responses (>). In front of the body
// of a response, public and private stand for Cache-Control, bare for no headers, and + for another header. A body that
// is not JSON begins with its media types.
//
// Types are written as name?: type "description". {a: string!} allows no other members, [T] is an array, (A | B), (A ^ B)
// and (A & B) are anyOf, oneOf and allOf, string<1..9> bounds a length or a value, string? may be null, /x/ is a pattern,
// and a name with a capital letter is a schema or a Go type.
func TestDocsOpenAPI(t *testing.T) {
	o := openOwnerAPI(t, t.TempDir())
	defer o.Close()
	d := newAPIDoc(t, o.Local)
	for _, line := range readLogicalLines(t, apiShapes) {
		d.shape(line)
	}
	if data, err := os.ReadFile(apiRoutes); err != nil || bytes.Count(data, []byte("\n")) > 300 {
		t.Errorf("%s has more than 300 lines (%v): put types into Go or into the file of shapes", apiRoutes, err)
	}
	d.routes(readLogicalLines(t, apiRoutes))
	d.ownerRoutes()
	var out bytes.Buffer
	out.WriteString("# Made by cmd/agentmesh/openapi_test.go from openapi.txt, openapi-shapes.txt, the owner API and Go types.\n")
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	document := d.document()
	flowStyle(document.Node)
	if err := enc.Encode(document.Node); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(apiFile)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case bytes.Equal(got, out.Bytes()):
	case !*update:
		t.Errorf("%s differs from its sources; run go test ./cmd/agentmesh -run Docs -update", filepath.Base(apiFile))
	default:
		if err := os.WriteFile(apiFile, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// readLogicalLines reads a file without comments. A line that is indented by four blanks, or in the file of shapes by
// two, continues the line before it.
func readLogicalLines(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	deeper := "    "
	if file == apiShapes {
		deeper = "  "
	}
	var list []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, deeper):
			list[len(list)-1] += " " + strings.TrimSpace(line)
		default:
			list = append(list, line)
		}
	}
	return list
}

// apiDoc is the document in the making.
type apiDoc struct {
	t       *testing.T
	process *daemon.Process
	info    string
	tags    []*yaml.Node
	paths   map[string]object
	order   []string // of the paths

	security, parameters, headers, responses, schemas object
	pathTypes                                         map[string]string // parameters of paths, in the form of a type
	types                                             goTypes
}

func newAPIDoc(t *testing.T, p *daemon.Process) *apiDoc {
	return &apiDoc{
		t: t, process: p, paths: map[string]object{}, pathTypes: map[string]string{}, types: newGoTypes(t),
		security: newObject(), parameters: newObject(), headers: newObject(), responses: newObject(), schemas: newObject(),
	}
}

func (d *apiDoc) document() object {
	paths := newObject()
	for _, path := range d.order {
		paths.set(path, d.paths[path])
	}
	d.addUsedTypes(paths)
	license := newObject("name", "Apache-2.0", "url", "https://www.apache.org/licenses/LICENSE-2.0")
	contact := newObject("name", "The operator of the process; its card or front page names a contact")
	return newObject(
		"openapi", "3.0.3",
		"info", newObject("title", "AgentMesh directory and node", "version", "0.1.0", "contact", contact, "license", license, "description", d.info),
		"servers", []*yaml.Node{newObject("url", "/").Node}, "tags", d.tags, "paths", paths,
		"components", newObject("securitySchemes", d.security, "parameters", d.parameters, "headers", d.headers, "responses", d.responses, "schemas", d.schemas),
	)
}

// shape reads a line of the file of shapes.
func (d *apiDoc) shape(line string) {
	kind, rest, _ := strings.Cut(line, " ")
	name, text, _ := strings.Cut(rest, " ")
	switch kind {
	case "":
	case "security":
		d.security.set(name, d.yaml(text))
	case "parameter":
		d.parameters.set(name, d.parameter(newScanner(d, text)))
	case "path":
		d.pathTypes[strings.TrimSuffix(name, ":")] = text
	case "header":
		s := newScanner(d, text)
		d.headers.set(name, header(s.schema(), !s.skip("?")))
	case "response":
		d.responses.set(name, d.response(newScanner(d, text)))
	default:
		if name := strings.TrimSuffix(kind, ":"); strings.Contains(name, ".") { // a member of a Go type
			d.types.members[strings.TrimSuffix(name, "?")] = member{newScanner(d, rest).schema(), !strings.HasSuffix(name, "?")}
		} else {
			d.schemas.set(name, newScanner(d, rest).schema())
		}
	}
}

func header(schema object, required bool) object {
	h := newObject()
	if required {
		h.set("required", true)
	}
	schema, text := withoutDescription(schema)
	return h.set("description", text).set("schema", schema)
}

// withoutDescription splits a schema, because a parameter and a header have the description outside of it.
func withoutDescription(schema object) (object, string) {
	out, text := newObject(), ""
	for i := 0; i < len(schema.Content); i += 2 {
		if key := schema.Content[i].Value; key == "description" {
			text = schema.Content[i+1].Value
		} else {
			out.set(key, schema.Content[i+1])
		}
	}
	if all := out.get("allOf"); text != "" && all != nil && len(all.Content) == 1 { // a reference had the description
		return object{all.Content[0]}, text
	}
	return out, text
}

func (d *apiDoc) yaml(text string) *yaml.Node {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		d.t.Fatalf("%s: %v", text, err)
	}
	plainStyle(n.Content[0])
	return n.Content[0]
}

func plainStyle(n *yaml.Node) {
	if n.Style &^= yaml.FlowStyle; n.Kind == yaml.ScalarNode && n.Tag == "!!str" {
		n.Style = 0
	}
	for _, child := range n.Content {
		plainStyle(child)
	}
}

// parameter reads name?: type "description", or ^name for a header.
func (d *apiDoc) parameter(s *scanner) object {
	in := "query"
	if s.skip("^") {
		in = "header"
	}
	name := s.word()
	optional := s.skip("?")
	s.expect(":")
	schema, text := withoutDescription(s.schema())
	p := newObject("name", name, "in", in)
	if !optional {
		p.set("required", true)
	}
	if kind := schema.get("type"); in == "query" && optional && (kind == nil || kind.Value != "integer") {
		p.set("allowEmptyValue", true)
	}
	return p.set("description", text).set("schema", schema)
}

// response reads the headers, the body and the description of a response.
func (d *apiDoc) response(s *scanner) object {
	out, headers := newObject(), newObject("X-Request-Id", ref("headers", "RequestID"))
	for more := true; more; {
		switch {
		case s.skip("bare "):
			headers = newObject()
		case s.skip("public "):
			headers.set("Cache-Control", ref("headers", "CacheControl"))
		case s.skip("private "):
			headers.set("Cache-Control", ref("headers", "NoStore"))
		case s.skip("etag "):
			headers.set("ETag", ref("headers", "ETag"))
		case s.skip("retry "):
			headers.set("Retry-After", ref("headers", "RetryAfter"))
		case s.skip("+"):
			name, optional := s.word(), s.skip("?")
			s.expect(":")
			headers.set(name, header(s.schema(), !optional))
		default:
			more = false
		}
	}
	content := d.content(s)
	s.expect(":")
	out.set("description", s.until(nextResponse))
	if len(headers.Content) > 0 {
		out.set("headers", headers)
	}
	if len(content.Content) > 0 {
		out.set("content", content)
	}
	return out
}

var nextResponse = regexp.MustCompile(` > \d{3} `)

// content reads the types of a body, each with its media types.
func (d *apiDoc) content(s *scanner) object {
	content := newObject()
	if s.skip("none") {
		return content
	}
	for {
		media := []string{}
		for mediaType.MatchString(s.rest()) {
			media = append(media, s.token())
		}
		if len(media) == 0 {
			media = []string{"application/json"}
		}
		schema := s.plainSchema()
		for _, m := range media {
			content.set(m, newObject("schema", schema))
		}
		if !s.skip("/ ") {
			return content
		}
	}
}

var mediaType = regexp.MustCompile(`^[a-z]+/[a-z0-9.+-]+ `)

// section has the defaults of the operations of a tag.
type section struct {
	tag      string
	security []*yaml.Node
	errors   map[string]string // the response for each status; "*" for all others
	statuses []string
}

// commonErrors are the responses of the routes that have errors in our own form.
var commonErrors = map[string]string{
	"304": "NotModified", "400": "BadRequest", "401": "Unauthenticated", "403": "Forbidden", "404": "NotFound", "409": "Conflict",
	"413": "TooLarge", "415": "MediaType", "422": "IntentNotSupported", "429": "RateLimited", "500": "Internal", "503": "Unavailable",
}

var (
	sectionLine   = regexp.MustCompile(`^== ([\w-]+) \(([^)]*)\)([^\[]*)(?:\[([\d ]*)\])?$`)
	operationLine = regexp.MustCompile(`^([A-Z|]+) (/\S*) (\S+)(?: \(([^)]*)\))?(?: \[(\+?)([^\]]*)\])? (.+)$`)
)

func securityOf(text string) []*yaml.Node {
	list := []*yaml.Node{}
	for name := range strings.FieldsSeq(text) {
		if name == "none" {
			list = append(list, nodeOf(map[string]any{}))
		} else {
			list = append(list, newObject(name, []*yaml.Node{}).Node)
		}
	}
	if text == "none" {
		return []*yaml.Node{}
	}
	return list
}

// routes reads the file of routes.
func (d *apiDoc) routes(lines []string) {
	var now section
	var prose []string // of the introduction, or of the tag
	flush := func() {
		text := strings.TrimSpace(strings.ReplaceAll(strings.Join(prose, "\n"), "\n\n", "\x00"))
		text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "\x00", "\n\n")
		switch {
		case now.tag == "":
			d.info = strings.ReplaceAll(text, "\n\n ", "\n\n")
		case text != "":
			d.tags = append(d.tags, newObject("name", now.tag, "description", text).Node)
		}
		prose = nil
	}
	for i := 0; i < len(lines); {
		line := lines[i]
		i++
		if m := sectionLine.FindStringSubmatch(line); m != nil {
			flush()
			now = section{tag: m[1], security: securityOf(m[2]), errors: map[string]string{}, statuses: strings.Fields(m[4])}
			for pair := range strings.FieldsSeq(m[3]) {
				status, name, _ := strings.Cut(pair, "=")
				now.errors[status] = name
			}
			continue
		}
		m := operationLine.FindStringSubmatch(line)
		if m == nil || now.tag == "" {
			prose = append(prose, line)
			continue
		}
		flush()
		begin := i
		for i < len(lines) && strings.HasPrefix(lines[i], "  ") {
			i++
		}
		ids := strings.Split(m[3], "|")
		for n, method := range strings.Split(m[1], "|") {
			d.operation(now, method, m[2], ids[n], m, lines[begin:i])
		}
	}
}

// operation adds an operation. m has the parts of its first line.
func (d *apiDoc) operation(now section, method, path, id string, m, body []string) {
	op := newObject("tags", nodeOf([]string{now.tag}), "operationId", id, "summary", m[7])
	security := now.security
	if m[4] != "" {
		security = securityOf(m[4])
	}
	statuses := strings.Fields(m[6])
	if m[5] == "+" || len(statuses) == 0 {
		statuses = append(slices.Clone(now.statuses), statuses...)
	}
	slices.Sort(statuses)
	var prose, flow []string
	for _, line := range body {
		if text := strings.TrimSpace(line); strings.ContainsAny(text[:1], "?<>") {
			flow = append(flow, text)
		} else {
			prose = append(prose, text)
		}
	}
	op.set("description", strings.Join(prose, " ")).set("security", security)
	responses := map[string]object{}
	var parameters []*yaml.Node
	for name := range pathNames(path) {
		kind := cmp.Or(d.pathTypes[name], "string")
		schema, text := withoutDescription(newScanner(d, kind).schema())
		parameters = append(parameters, newObject("name", name, "in", "path", "required", true).set("description", text).set("schema", schema).Node)
	}
	var requestBody object
	for s := newScanner(d, strings.Join(flow, " ")); s.rest() != ""; {
		switch {
		case s.skip("? "):
			for {
				if name := wordForm.FindString(s.rest()); d.parameters.get(name) != nil {
					s.word()
					parameters = append(parameters, ref("parameters", name).Node)
				} else {
					parameters = append(parameters, d.parameter(s).Node)
				}
				if !s.skip(",") {
					break
				}
			}
		case s.skip("<"):
			requestBody = newObject()
			if !s.skip("?") {
				requestBody.set("required", true)
			}
			s.space()
			content := d.content(s)
			requestBody.set("description", s.quoted()).set("content", content)
		default:
			s.expect("> ")
			responses[s.token()] = d.response(s)
		}
	}
	for _, status := range statuses {
		status, name, given := strings.Cut(status, "=")
		if !given {
			name = cmp.Or(now.errors[status], now.errors["*"], commonErrors[status])
		}
		if status == "304" && now.tag != "a2a" {
			parameters = append(parameters, ref("parameters", "IfNoneMatch").Node)
			for _, r := range responses {
				object{r.get("headers")}.set("ETag", ref("headers", "ETag"))
			}
		}
		if name == "" {
			d.t.Errorf("%s %s: no response for status %s", method, path, status)
		}
		responses[status] = ref("responses", name)
	}
	d.add(method, path, op, parameters, requestBody, responses)
}

// add adds an operation to its path.
func (d *apiDoc) add(method, path string, op object, parameters []*yaml.Node, requestBody object, responses map[string]object) {
	if len(parameters) > 0 {
		op.set("parameters", parameters)
	}
	if requestBody.Node != nil {
		op.set("requestBody", requestBody)
	}
	list := newObject()
	for _, status := range slices.Sorted(mapsKeys(responses)) {
		list.Content = append(list.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: status, Style: yaml.DoubleQuotedStyle}, responses[status].Node)
	}
	op.set("responses", list)
	if _, ok := d.paths[path]; !ok {
		d.paths[path] = newObject()
		d.order = append(d.order, path)
	}
	d.paths[path].set(strings.ToLower(method), op)
}

func mapsKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// pathNames yields the names of the parameters of a path.
func pathNames(path string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok && !yield(strings.TrimSuffix(name, "}")) {
				return
			}
		}
	}
}

// addUsedTypes adds the schemas of Go types that the document refers to, and those that these refer to.
func (d *apiDoc) addUsedTypes(paths object) {
	const prefix = "#/components/schemas/"
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if name, ok := strings.CutPrefix(n.Value, prefix); ok && d.schemas.get(name) == nil {
			schema, err := d.types.schema(name)
			if err != nil {
				d.t.Errorf("schema %s: %v", name, err)
				schema = newObject()
			}
			d.schemas.set(name, schema)
			walk(schema.Node)
		}
		for _, child := range n.Content {
			walk(child)
		}
	}
	walk(paths.Node)
	walk(d.responses.Node)
	for _, n := range slices.Clone(d.schemas.Content) {
		walk(n)
	}
	for i := 1; i < len(d.schemas.Content); i += 2 {
		walk(d.schemas.Content[i])
	}
}
