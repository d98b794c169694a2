package main

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// object is a YAML mapping in the making. Its order stays.
type object struct{ *yaml.Node }

func newObject(pairs ...any) object {
	o := object{&yaml.Node{Kind: yaml.MappingNode}}
	for i := 0; i < len(pairs); i += 2 {
		o.set(pairs[i].(string), pairs[i+1])
	}
	return o
}

// set adds a member, unless the value is an empty text or an empty object.
func (o object) set(key string, value any) object {
	n := nodeOf(value)
	if s, ok := value.(string); ok && s == "" {
		return o
	}
	o.Content = append(o.Content, nodeOf(key), n)
	return o
}

func (o object) get(key string) *yaml.Node {
	for i := 0; i < len(o.Content); i += 2 {
		if o.Content[i].Value == key {
			return o.Content[i+1]
		}
	}
	return nil
}

func nodeOf(value any) *yaml.Node {
	switch v := value.(type) {
	case object:
		return v.Node
	case *yaml.Node:
		return v
	case []*yaml.Node:
		return &yaml.Node{Kind: yaml.SequenceNode, Content: v}
	}
	var n yaml.Node
	if err := n.Encode(value); err != nil {
		panic(err)
	}
	return &n
}

// flowStyle writes a short mapping or list on one line.
func flowStyle(n *yaml.Node) (size int) {
	for _, child := range n.Content {
		size += flowStyle(child) + 2
	}
	if size += len(n.Value); n.Kind != yaml.ScalarNode && size < 80 {
		n.Style = yaml.FlowStyle
	}
	return size
}

func ref(kind, name string) object { return newObject("$ref", "#/components/"+kind+"/"+name) }

// scanner reads types.
type scanner struct {
	d    *apiDoc
	text string
	at   int
}

func newScanner(d *apiDoc, text string) *scanner { return &scanner{d: d, text: text} }

func (s *scanner) space() {
	for s.at < len(s.text) && s.text[s.at] == ' ' {
		s.at++
	}
}

func (s *scanner) rest() string { s.space(); return s.text[s.at:] }

// skip skips a token if it comes next.
func (s *scanner) skip(token string) bool {
	if !strings.HasPrefix(s.rest(), token) {
		return false
	}
	s.at += len(token)
	return true
}

func (s *scanner) expect(token string) {
	if !s.skip(token) {
		s.d.t.Fatalf("%q expected before %q in %q", token, s.rest(), s.text)
	}
}

var wordForm = regexp.MustCompile(`^[\w@.*-]+`)

func (s *scanner) word() string {
	word := wordForm.FindString(s.rest())
	if word == "" {
		s.d.t.Fatalf("a name is missing before %q in %q", s.rest(), s.text)
	}
	s.at += len(word)
	return word
}

// token reads up to the next blank.
func (s *scanner) token() string {
	token, _, _ := strings.Cut(s.rest(), " ")
	s.at += len(token)
	return token
}

// until reads up to a match of form, or to the end.
func (s *scanner) until(form *regexp.Regexp) string {
	text := s.rest()
	if at := form.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	s.at += len(text)
	return text
}

func (s *scanner) quoted() string {
	if !s.skip(`"`) {
		return ""
	}
	text, _, _ := strings.Cut(s.text[s.at:], `"`)
	s.at += len(text) + 1
	return text
}

// schema reads a type with its description.
func (s *scanner) schema() object {
	schema := s.plainSchema()
	text := s.quoted()
	if text != "" && schema.get("$ref") != nil {
		schema = newObject("allOf", []*yaml.Node{schema.Node}) // a reference cannot have members beside it
	}
	return schema.set("description", text)
}

// plainSchema reads a type without description.
func (s *scanner) plainSchema() object {
	var schema object
	switch {
	case s.skip("("):
		list, kind := []*yaml.Node{s.schema().Node}, "allOf"
		for !s.skip(")") {
			kind = map[string]string{"|": "anyOf", "^": "oneOf", "&": "allOf"}[s.token()]
			list = append(list, s.schema().Node)
		}
		return newObject(kind, list)
	case s.skip("["):
		items := s.schema()
		s.expect("]")
		schema = newObject("type", "array", "items", items)
	case s.skip("{"):
		schema = s.members()
	case s.skip("/"):
		pattern := s.until(patternEnd)
		s.expect("/")
		schema = newObject("type", "string", "pattern", pattern)
	case s.skip("enum("):
		list := []*yaml.Node{}
		for !s.skip(")") {
			value := s.rest()[:strings.IndexAny(s.rest(), " )")]
			s.at += len(value)
			n := nodeOf(strings.Trim(value, `"`))
			if value == "null" {
				n = nodeOf(nil)
			}
			list = append(list, n)
		}
		schema = newObject("type", "string", "enum", list)
	default:
		name := s.word()
		kinds := map[string]object{
			"string": newObject("type", "string"), "int": newObject("type", "integer"), "number": newObject("type", "number"),
			"bool": newObject("type", "boolean"), "object": newObject("type", "object"), "any": newObject(),
			"time": newObject("type", "string", "format", "date-time"),
		}
		var ok bool
		if schema, ok = kinds[name]; !ok {
			schema = ref("schemas", name)
		}
	}
	s.constraints(schema)
	return schema
}

// patternEnd matches the slash at the end of a pattern.
var patternEnd = regexp.MustCompile(`/(?:[ ,?()\]}!]|$)`)

// constraints reads bounds, a question mark for null, and other constraints in parentheses.
func (s *scanner) constraints(schema object) {
	isText := schema.get("type") != nil && schema.get("type").Value == "string"
	if strings.HasPrefix(s.text[s.at:], "<") {
		s.expect("<")
		low, high, _ := strings.Cut(s.until(regexp.MustCompile(">")), "..")
		s.expect(">")
		names := map[bool][2]string{true: {"minLength", "maxLength"}, false: {"minimum", "maximum"}}[isText]
		for i, bound := range []string{low, high} {
			if n, err := strconv.Atoi(bound); err == nil {
				schema.set(names[i], n)
			}
		}
	}
	if strings.HasPrefix(s.text[s.at:], "?") {
		s.at++
		schema.set("nullable", true)
	}
	if !strings.HasPrefix(s.text[s.at:], "(") {
		return
	}
	s.at++
	inside := s.until(regexp.MustCompile(`\)`))
	s.expect(")")
	parsed := object{s.d.yaml("{" + regexp.MustCompile(`(^|, )(\w+)=`).ReplaceAllString(inside, "$1$2: ") + "}")}
	for i := 0; i < len(parsed.Content); i += 2 {
		key, value := parsed.Content[i].Value, parsed.Content[i+1]
		if isText && (key == "default" || key == "example") {
			value = nodeOf(value.Value)
		}
		schema.set(key, value)
	}
}

// members reads the members of an object after its brace.
func (s *scanner) members() object {
	properties, required, closed := newObject(), []string{}, any(nil)
	for !s.skip("}") {
		switch {
		case s.skip("!"):
			closed = false
			continue
		case s.skip(","):
			continue
		}
		name := s.word()
		optional := s.skip("?")
		s.expect(":")
		if name == "*" {
			closed = s.schema()
			continue
		}
		if !optional {
			required = append(required, name)
		}
		if !s.skip("*") {
			properties.set(name, s.schema())
		}
	}
	schema := newObject("type", "object")
	if len(required) > 0 {
		schema.set("required", nodeOf(required))
	}
	if closed != nil {
		schema.set("additionalProperties", closed)
	}
	if len(properties.Content) > 0 {
		schema.set("properties", properties)
	}
	return schema
}
