package yamltree

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

// Limits bound the input of [Parse]. All are required.
type Limits struct {
	Bytes    int // of the text
	Depth    int // of nested lists and maps
	Nodes    int // values of all documents together
	Keys     int // of one map
	KeyBytes int // of one key
	Marks    int // line breaks, indicators and the like, which cost the parser most
}

// Options are the limits, and how to read numbers.
type Options struct {
	Limits
	// Numbers decides how to read plain scalars such as 0x10, 0o7, 1_000 and +5, which are numbers for the YAML library
	// but not for JSON: as numbers if set, otherwise as texts.
	Numbers bool
}

// Document is one document of a stream.
type Document struct {
	wire.Value
	Line int // on which the document begins
}

// Error is why a text was refused. It quotes nothing from the input.
type Error struct {
	Reason string
	Line   int  // 0 if the parser does not report it
	Size   bool // the text is larger than [Limits.Bytes]
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("%s at line %d", e.Reason, e.Line)
}

// Parse reads a YAML stream into the trees that a strict JSON reader would make of the same documents. It leaves out
// empty and null documents. Every error is an *[Error].
func Parse(data []byte, o Options) ([]Document, error) {
	if err := prescan(data, o.Limits); err != nil {
		return nil, err
	}
	var docs []Document
	dec := yaml.NewDecoder(bytes.NewReader(data))
	w := walker{Options: o, nodes: o.Nodes}
	for {
		var doc yaml.Node
		err := decode(dec, &doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, &Error{Reason: "not well-formed YAML", Line: lineOf(err)}
		}
		root := &doc
		if doc.Kind == yaml.DocumentNode {
			if len(doc.Content) == 0 {
				continue
			}
			root = doc.Content[0]
		}
		v, err := w.value(root, o.Depth)
		if err != nil {
			return nil, err
		}
		if !v.IsNull() {
			docs = append(docs, Document{v, root.Line})
		}
	}
}

// decode reads one document. It turns a panic of the parser into an error, because the input may be hostile.
func decode(dec *yaml.Decoder, doc *yaml.Node) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("the parser gave up")
		}
	}()
	return dec.Decode(doc)
}

var linePattern = regexp.MustCompile(`line (\d{1,9})`)

func lineOf(err error) int {
	m := linePattern.FindStringSubmatch(err.Error())
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(m[1]) // at most nine digits
	return n
}

// prescan refuses data that is too large, is not clean UTF-8, or would keep the parser busy for long (MESS-61). It
// counts the characters that open or separate nodes. A directive, or a line like a directive, counts many times,
// because the parser compares it with all earlier directives.
func prescan(data []byte, l Limits) error {
	if len(data) > l.Bytes {
		return &Error{Reason: fmt.Sprintf("the document is larger than %d bytes", l.Bytes), Line: LineAt(data, l.Bytes), Size: true}
	}
	if !utf8.Valid(data) {
		return &Error{Reason: "not UTF-8", Line: LineAt(data, invalidAt(data))}
	}
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return &Error{Reason: "byte order mark", Line: 1}
	}
	directiveCost := l.Marks / 100
	marks, line, previous := 0, 1, byte('\n')
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
			if i+1 == len(data) || isBlank(data[i+1]) {
				marks++
			}
		case '!', '&', '*':
			if isBlank(previous) {
				marks++
			}
		case '%':
			if previous == '\n' || previous == '\r' {
				marks += directiveCost
			}
		case 0x85, 0xa8, 0xa9: // the last byte of a Unicode line break
			if endsWithBreak(data[:i+1]) {
				marks++
				c = '\n'
			}
		case 0:
			return &Error{Reason: "NUL", Line: line}
		}
		previous = c
		if marks > l.Marks {
			return &Error{Reason: "too many nodes or lines", Line: line}
		}
	}
	if offset := findFlowOverflow(data, l.Nodes); offset >= 0 {
		return &Error{Reason: "too many nodes", Line: LineAt(data, offset)}
	}
	return nil
}

func endsWithBreak(data []byte) bool {
	return bytes.HasSuffix(data, []byte("\u0085")) || bytes.HasSuffix(data, []byte("\u2028")) || bytes.HasSuffix(data, []byte("\u2029"))
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

// invalidAt returns the offset of the first byte that is not UTF-8.
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

// LineAt returns the number of the line in which an offset lies.
func LineAt(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), len(data))], []byte("\n"))
}

// walker makes the trees of parsed documents.
type walker struct {
	Options
	nodes int // number of values that may still be made
}

func refuse(n *yaml.Node, reason string) error { return &Error{Reason: reason, Line: n.Line} }

// value makes the tree of a node, in which lists and maps may be nested at most depth levels.
func (w *walker) value(n *yaml.Node, depth int) (wire.Value, error) {
	if w.nodes--; w.nodes < 0 {
		return wire.Value{}, refuse(n, "too many nodes")
	}
	if n.Anchor != "" {
		return wire.Value{}, refuse(n, "anchors are not accepted")
	}
	if err := checkTag(n); err != nil {
		return wire.Value{}, err
	}
	switch n.Kind {
	case yaml.ScalarNode:
		return w.scalar(n)
	case yaml.SequenceNode:
		return w.sequence(n, depth-1)
	case yaml.MappingNode:
		return w.mapping(n, depth-1)
	}
	return wire.Value{}, refuse(n, "aliases are not accepted")
}

// checkTag accepts the core tags, written or implied. [walker.scalar] decides which tag a plain scalar implies.
func checkTag(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle == 0 && n.Tag != "!" {
		return nil
	}
	tag := n.ShortTag()
	if n.Tag == "!" {
		tag = n.Tag // the non-specific tag, about whose meaning readers do not agree
	}
	switch tag {
	case "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq":
		return nil
	}
	return refuse(n, "only the core tags are accepted")
}

func (w *walker) sequence(n *yaml.Node, depth int) (wire.Value, error) {
	if depth < 0 {
		return wire.Value{}, refuse(n, "nested too deep")
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
		return wire.Value{}, refuse(n, "nested too deep")
	}
	if len(n.Content)/2 > w.Keys {
		return wire.Value{}, refuse(n, "too many keys in one map")
	}
	members := make([]wire.Member, 0, len(n.Content)/2)
	seen := make(map[string]struct{}, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if err := w.checkKey(key, seen); err != nil {
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

// checkKey refuses a node that may not be a key, and a key that is already in seen.
func (w *walker) checkKey(n *yaml.Node, seen map[string]struct{}) error {
	_, duplicate := seen[n.Value]
	switch {
	case n.Kind == yaml.AliasNode:
		return refuse(n, "aliases are not accepted")
	case n.Kind != yaml.ScalarNode:
		return refuse(n, "a key must be a scalar")
	case n.Anchor != "":
		return refuse(n, "anchors are not accepted")
	case n.ShortTag() == "!!merge":
		return refuse(n, "merge keys are not accepted")
	case duplicate:
		return refuse(n, "duplicate key")
	case n.Value == "__proto__":
		return refuse(n, "key __proto__")
	case len(n.Value) > w.KeyBytes:
		return refuse(n, "a key is too long")
	}
	seen[n.Value] = struct{}{}
	return checkTag(n)
}

// plainNumber matches the plain scalars that become numbers: decimal, without "+", leading zeros or underscores
// (MESS-62). readPlain also requires a digit before the exponent.
var plainNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)?(\.[0-9]*)?([eE][-+]?[0-9]+)?$`)

// scalar reads a scalar. Without a tag, quoted and block scalars are texts. A plain scalar is null or a boolean by the
// core schema of YAML 1.2, and a number if it matches plainNumber or [Options] allows it. Other plain scalars, such as
// timestamps, are texts.
func (w *walker) scalar(n *yaml.Node) (wire.Value, error) {
	text := n.Value
	tagged := n.Style&yaml.TaggedStyle != 0
	quoted := n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	if tagged && n.ShortTag() == "!!str" || quoted && !tagged {
		return wire.Text(text), nil
	}
	if tag := n.ShortTag(); w.Numbers && (tag == "!!int" || tag == "!!float") {
		return readNumber(n)
	}
	v, kind, err := readPlain(text)
	if err != nil {
		return v, refuse(n, err.Error())
	}
	if tagged {
		want := map[string]string{"!!int": "int", "!!float": "float", "!!bool": "bool", "!!null": "null"}[n.ShortTag()]
		if kind != want && (kind != "int" || want != "float") {
			return v, refuse(n, "the value does not have its tag's type")
		}
	}
	return v, nil
}

// readNumber reads a number in any form that the YAML library knows.
func readNumber(n *yaml.Node) (wire.Value, error) {
	const maxDepth, maxValues = 1, 1
	if v, err := wire.ParseForeign([]byte(n.Value), maxDepth, maxValues); err == nil && v.Kind() == wire.Number {
		return v, nil
	}
	var f float64
	if err := n.Decode(&f); err != nil {
		return wire.Value{}, refuse(n, "not a number")
	}
	v, err := wire.ParseForeign(strconv.AppendFloat(nil, f, 'f', -1, 64), maxDepth, maxValues)
	if err != nil { // an infinity, or not a number
		return wire.Value{}, refuse(n, "not a number")
	}
	return v, nil
}

// readPlain resolves a plain scalar. kind is the name of its tag.
func readPlain(text string) (v wire.Value, kind string, err error) {
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
	v, err = wire.Parse([]byte(toJSONNumber(text)))
	if err != nil {
		return v, "", errors.New("the number is out of range")
	}
	kind = "float"
	if !strings.ContainsAny(text, ".eE") {
		kind = "int"
	}
	return v, kind, nil
}

// toJSONNumber puts digits on both sides of the point, which JSON needs and YAML does not.
func toJSONNumber(text string) string {
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
