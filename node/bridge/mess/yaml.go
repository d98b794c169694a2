package mess

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/agentmesh/agentmesh/node/wire"
)

// The bounds of MESS-58 and MESS-61.
const (
	MaxDocument = 2 << 20 // bytes of one block, YAML or JSON
	maxDepth    = 28      // a block nests into a signed message, whose limit is wire.MaxDepth
	maxNodes    = 10_000
	maxKeys     = 1_000
	maxKey      = 512    // bytes; YAML readers give up on keys beyond 1024
	maxMarks    = 40_000 // what the pre-scan counts
)

// document is one of a stream.
type document struct {
	wire.Value
	line int // on which it begins
}

func values(docs []document) []wire.Value {
	out := make([]wire.Value, len(docs))
	for i, doc := range docs {
		out[i] = doc.Value
	}
	return out
}

// tooLong says on which line the bound lies.
func tooLong(data []byte) error {
	return tooLarge(fmt.Sprintf("the document is larger than 2 MiB at line %d", lineAt(data, MaxDocument)))
}

// parseYAML reads a YAML stream into the trees that the strict JSON reader would make of the same documents (MESS-62).
// Empty documents are left out.
func parseYAML(data []byte) ([]document, error) {
	if err := prescan(data); err != nil {
		return nil, err
	}
	var docs []document
	dec := yaml.NewDecoder(bytes.NewReader(data))
	w := walker{nodes: maxNodes}
	for {
		var doc yaml.Node
		err := decode(dec, &doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, bad("", "not well-formed YAML"+lineOf(err))
		}
		root := &doc
		if doc.Kind == yaml.DocumentNode {
			if len(doc.Content) == 0 {
				continue
			}
			root = doc.Content[0]
		}
		v, err := w.value(root, maxDepth)
		if err != nil {
			return nil, err
		}
		if !v.IsNull() {
			docs = append(docs, document{v, root.Line})
		}
	}
}

// decode is one document. A panic of the parser is an error like any other: the input is a stranger's.
func decode(dec *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the parser gave up")
		}
	}()
	return dec.Decode(doc)
}

var lineIn = regexp.MustCompile(`line (\d{1,9})`)

// lineOf returns " at line N" where the parser says which.
func lineOf(err error) string {
	if m := lineIn.FindStringSubmatch(err.Error()); m != nil {
		return " at line " + m[1]
	}
	return ""
}

// prescan refuses in one pass what would keep the parser busy for long (MESS-61): it counts what opens or separates
// nodes, and what the parser looks up again and again. A directive, or what looks like one, is looked up in all before it.
func prescan(data []byte) error {
	if len(data) > MaxDocument {
		return tooLong(data)
	}
	if !utf8.Valid(data) {
		return bad("", fmt.Sprintf("not UTF-8 at line %d", lineAt(data, invalidAt(data))))
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return bad("", "byte order mark at line 1")
	}
	const directive = maxMarks / 100
	marks, line, before := 0, 1, byte('\n')
	for i, c := range data {
		switch c {
		case '\n':
			line++
			marks++
		case '[', ']', '{', '}', ',':
			marks++
		case '\r':
			if i+1 == len(data) || data[i+1] != '\n' {
				marks++
			}
		case '-', '?':
			if i+1 == len(data) || blank(data[i+1]) {
				marks++
			}
		case '!', '&', '*':
			if blank(before) {
				marks++
			}
		case '%':
			if before == '\n' || before == '\r' {
				marks += directive
			}
		case 0x85, 0xa8, 0xa9: // the end of what YAML also takes for a line break
			if breaks(data[:i+1]) {
				marks++
				c = '\n'
			}
		case 0:
			return bad("", fmt.Sprintf("NUL at line %d", line))
		}
		before = c
		if marks > maxMarks {
			return bad("", fmt.Sprintf("too many nodes or lines at line %d", line))
		}
	}
	if at := crowded(data); at >= 0 {
		return bad("", fmt.Sprintf("too many nodes at line %d", lineAt(data, at)))
	}
	return nil
}

// breaks says whether data ends with a line break of Unicode.
func breaks(data []byte) bool {
	return bytes.HasSuffix(data, []byte("\u0085")) || bytes.HasSuffix(data, []byte("\u2028")) || bytes.HasSuffix(data, []byte("\u2029"))
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(data)
}

func lineAt(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}

// walker turns nodes into values. nodes counts down over a whole stream.
type walker struct{ nodes int }

func at(n *yaml.Node, reason string) error {
	return bad("", fmt.Sprintf("%s at line %d", reason, n.Line))
}

func (w *walker) value(n *yaml.Node, depth int) (wire.Value, error) {
	if w.nodes--; w.nodes < 0 {
		return wire.Value{}, at(n, "too many nodes")
	}
	if n.Anchor != "" {
		return wire.Value{}, at(n, "anchors are not accepted")
	}
	if err := checkTag(n); err != nil {
		return wire.Value{}, err
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return scalar(n)
	case yaml.SequenceNode:
		return w.sequence(n, depth-1)
	case yaml.MappingNode:
		return w.mapping(n, depth-1)
	}
	return wire.Value{}, at(n, "aliases are not accepted")
}

// checkTag lets the core tags pass, written or implied; what a plain scalar implies is judged by [scalar].
func checkTag(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle == 0 && n.Tag != "!" {
		return nil
	}
	tag := n.ShortTag()
	if n.Tag == "!" {
		tag = n.Tag // "specific to nothing": readers do not agree on what it makes of a scalar
	}
	switch tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return nil
	}
	return at(n, "only the core tags are accepted")
}

func (w *walker) sequence(n *yaml.Node, depth int) (wire.Value, error) {
	if depth < 0 {
		return wire.Value{}, at(n, "nested too deep")
	}
	elems := make([]wire.Value, 0, len(n.Content))
	for _, kid := range n.Content {
		v, err := w.value(kid, depth)
		if err != nil {
			return wire.Value{}, err
		}
		elems = append(elems, v)
	}
	return wire.Arr(elems...), nil
}

func (w *walker) mapping(n *yaml.Node, depth int) (wire.Value, error) {
	if depth < 0 {
		return wire.Value{}, at(n, "nested too deep")
	}
	if len(n.Content)/2 > maxKeys {
		return wire.Value{}, at(n, "too many keys in one map")
	}
	members := make([]wire.Member, 0, len(n.Content)/2)
	seen := make(map[string]struct{}, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if err := w.key(key, seen); err != nil {
			return wire.Value{}, err
		}
		v, err := w.value(n.Content[i+1], depth)
		if err != nil {
			return wire.Value{}, err
		}
		members = append(members, wire.Member{Key: key.Value, Value: v})
	}
	return wire.Obj(members...), nil
}

func (w *walker) key(n *yaml.Node, seen map[string]struct{}) error {
	_, duplicate := seen[n.Value]
	switch {
	case n.Kind == yaml.AliasNode:
		return at(n, "aliases are not accepted")
	case n.Kind != yaml.ScalarNode:
		return at(n, "a key must be a scalar")
	case n.Anchor != "":
		return at(n, "anchors are not accepted")
	case n.ShortTag() == "!!merge":
		return at(n, "merge keys are not accepted")
	case duplicate:
		return at(n, "duplicate key")
	case n.Value == "__proto__":
		return at(n, "key __proto__")
	case len(n.Value) > maxKey:
		return at(n, "a key is too long")
	}
	seen[n.Value] = struct{}{}
	return checkTag(n)
}

// plainNumber matches what becomes a number: decimal, without sign "+", leading zeros or underscores (MESS-62).
var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$`)

// scalar reads a scalar: quoted and block ones are text, plain ones what the core schema of YAML 1.2 says, as far as
// JSON knows it. A timestamp stays the text it is.
func scalar(n *yaml.Node) (wire.Value, error) {
	text := n.Value
	tagged := n.Style&yaml.TaggedStyle != 0
	quoted := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	if tagged && n.ShortTag() == "!!str" || quoted && !tagged {
		return wire.Text(text), nil
	}
	v, kind, err := plain(text)
	if err != nil {
		return v, at(n, err.Error())
	}
	if tagged {
		want := map[string]string{"!!int": "int", "!!float": "float", "!!bool": "bool", "!!null": "null"}[n.ShortTag()]
		if kind != want && (kind != "int" || want != "float") {
			return v, at(n, "the value does not have its tag's type")
		}
	}
	return v, nil
}

// plain resolves a plain scalar.
func plain(text string) (v wire.Value, kind string, err error) {
	switch text {
	case "", "~", "null", "Null", "NULL":
		return wire.Value{}, "null", nil
	case "true", "True", "TRUE":
		return wire.Bool(true), "bool", nil
	case "false", "False", "FALSE":
		return wire.Bool(false), "bool", nil
	}
	if len(text) > 64 || !plainNumber.MatchString(text) || !strings.ContainsAny(text, "0123456789") {
		return wire.Text(text), "str", nil
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	if !strings.ContainsAny(mantissa, "0123456789") {
		return wire.Text(text), "str", nil
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && n <= wire.MaxSafeInteger && n >= -wire.MaxSafeInteger {
		return wire.Int(n), "int", nil
	}
	v, err = wire.Parse([]byte(jsonNumber(text)))
	if err != nil {
		return v, "", errors.New("the number is out of range")
	}
	kind = "float"
	if !strings.ContainsAny(text, ".eE") {
		kind = "int"
	}
	return v, kind, nil
}

// jsonNumber writes a float that YAML allows as JSON has it: digits on both sides of the point.
func jsonNumber(text string) string {
	sign := ""
	if rest, ok := strings.CutPrefix(text, "-"); ok {
		sign, text = "-", rest
	}
	if strings.HasPrefix(text, ".") {
		text = "0" + text
	}
	whole, rest, point := strings.Cut(text, ".")
	if point && (rest == "" || rest[0] == 'e' || rest[0] == 'E') {
		rest = "0" + rest
	}
	if point {
		return sign + whole + "." + rest
	}
	return sign + whole
}
