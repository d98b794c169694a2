package thread

import (
	"errors"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// MaxDocument is the most that one block may have in bytes, as YAML or JSON (MESS-58).
const MaxDocument = 2 << 20

// Limits are the bounds of a block (MESS-61). A block nests into a signed message, whose depth is at most wire.MaxDepth.
var Limits = yamltree.Limits{Bytes: MaxDocument, Depth: 28, Nodes: 10_000, Keys: 1_000, KeyBytes: 512, Marks: 40_000}

// Version10 and Version11 are what we emit (MESS-4).
const (
	Version10 = "1.0.0"
	Version11 = "1.1.0"
)

// Entry is one message of a block: its type and its body, verbatim.
type Entry struct {
	Type string
	Body wire.Value
}

// Block is an ordered list of entries (MESS-1). Entries of unknown type are kept (MESS-5).
type Block []Entry

// Tree returns the block as the JSON twin: the bare list.
func (b Block) Tree() wire.Value {
	elems := make([]wire.Value, len(b))
	for i, e := range b {
		elems[i] = wire.Obj(wire.Field(e.Type, e.Body))
	}
	return wire.Arr(elems...)
}

// Parse reads a block in any of the forms of MESS-2. It judges the shape of the list alone; what entries must carry is
// judged by [Block.Check]. The error is a *wire.Error that says where.
func Parse(data []byte) (Block, error) {
	docs, err := ParseDocuments(data)
	if err != nil {
		return nil, err
	}
	var b Block
	for _, doc := range docs {
		part, err := FromTreeAt(doc.Value, len(b))
		if err != nil {
			return nil, Bad("", fmt.Sprintf("%s, in the document at line %d", PublicText(err), doc.Line))
		}
		b = append(b, part...)
	}
	if len(b) == 0 {
		return nil, Bad("MESS", "the block has no entry")
	}
	return b, nil
}

// ParseDocuments reads JSON where the text looks like it, else a YAML stream. JSON is nearly YAML: what the strict reader
// refuses is refused, not tried again under laxer rules.
func ParseDocuments(data []byte) ([]yamltree.Document, error) {
	if len(data) > MaxDocument {
		return nil, tooLong(data)
	}
	if text := strings.TrimLeft(string(data[:min(len(data), 4096)]), " \t\r\n"); looksJSON(text) {
		v, err := ParseJSON(data)
		return []yamltree.Document{{Value: v, Line: 1}}, err
	}
	return parseYAML(data)
}

// Values returns the documents without their lines.
func Values(docs []yamltree.Document) []wire.Value {
	out := make([]wire.Value, len(docs))
	for i, doc := range docs {
		out[i] = doc.Value
	}
	return out
}

// parseYAML reads a YAML stream under the bounds of MESS-61.
func parseYAML(data []byte) ([]yamltree.Document, error) {
	docs, err := yamltree.Parse(data, yamltree.Options{Limits: Limits})
	if e, ok := errors.AsType[*yamltree.Error](err); ok && e.Size {
		return nil, tooLong(data)
	}
	if err != nil {
		return nil, Bad("", err.Error())
	}
	return docs, nil
}

// tooLong returns the refusal of a document beyond the bound, with the line in which the bound lies.
func tooLong(data []byte) error {
	return TooLarge(fmt.Sprintf("the document is larger than 2 MiB at line %d", yamltree.LineAt(data, MaxDocument)))
}

// looksJSON tells a JSON text from YAML flow style: its first value is a container whose first element begins as JSON.
func looksJSON(text string) bool {
	if text == "" || text[0] != '{' && text[0] != '[' {
		return false
	}
	rest := strings.TrimLeft(text[1:], " \t\r\n")
	return rest == "" || rest[0] == '"' || rest[0] == '{' || rest[0] == '}' || rest[0] == ']' || text[0] == '['
}

// ParseJSON is the strict reader under the bounds of MESS-61.
func ParseJSON(data []byte) (wire.Value, error) {
	if len(data) > MaxDocument {
		return wire.Value{}, tooLong(data)
	}
	v, err := wire.ParseLimits(data, Limits.Depth, Limits.Nodes)
	if err != nil {
		line, reason := 1, "not JSON"
		if e, ok := errors.AsType[*wire.SyntaxError](err); ok {
			line, reason = yamltree.LineAt(data, e.Offset), e.Reason
		}
		return v, Bad("", fmt.Sprintf("%s at line %d", reason, line))
	}
	return v, sane(v)
}

// sane refuses what the tree of a strict JSON text may hold and a block may not: NUL, and maps of too many keys.
func sane(v wire.Value) error {
	if text, ok := v.Str(); ok && strings.ContainsRune(text, 0) {
		return Bad("", "NUL in a text")
	}
	if v.Kind() == wire.Object && v.Len() > Limits.Keys {
		return Bad("", "too many keys in one map")
	}
	for _, m := range v.Members() {
		if strings.ContainsRune(m.Key, 0) || len(m.Key) > Limits.KeyBytes {
			return Bad("", "a key is too long or holds NUL")
		}
		if err := sane(m.Value); err != nil {
			return err
		}
	}
	for e := range v.Elems() {
		if err := sane(e); err != nil {
			return err
		}
	}
	return nil
}

// FromTree reads a block from a tree: a list, or a map with the one key MESS.
func FromTree(v wire.Value) (Block, error) {
	b, err := FromTreeAt(v, 0)
	if err == nil && len(b) == 0 {
		return nil, Bad("MESS", "the block has no entry")
	}
	return b, err
}

// FromTreeAt is FromTree for a part of a block that begins with entry number first.
func FromTreeAt(v wire.Value, first int) (Block, error) {
	if v.Kind() == wire.Object {
		inner, ok := v.Get("MESS")
		if !ok || v.Len() != 1 {
			return nil, Bad("MESS", "must be a list of entries, or a map with the one key MESS")
		}
		v = inner
	}
	if v.Kind() != wire.Array {
		return nil, Bad("MESS", "must be a list of entries")
	}
	b := make(Block, 0, v.Len())
	for e := range v.Elems() {
		if e.Kind() != wire.Object || e.Len() != 1 {
			return nil, Bad(fmt.Sprintf("MESS[%d]", first+len(b)), "must be a map with one key")
		}
		m := e.Members()[0]
		if m.Key == "" || len(m.Key) > 64 {
			return nil, Bad(fmt.Sprintf("MESS[%d]", first+len(b)), "the type must have 1 to 64 bytes")
		}
		b = append(b, Entry{Type: m.Key, Body: m.Value})
	}
	return b, nil
}

// YAML writes the block as a document "MESS: …".
func (b Block) YAML() []byte {
	return yamltree.Append(nil, wire.Obj(wire.Field("MESS", b.Tree())))
}

// JSON writes the block as {"MESS": […]}.
func (b Block) JSON() []byte {
	return wire.Obj(wire.Field("MESS", b.Tree())).JSON()
}

// Version returns what the block pins, "" where it pins nothing.
func (b Block) Version() string {
	for _, e := range b {
		if e.Type == "v" {
			text, _ := versionText(e.Body)
			return text
		}
	}
	return ""
}

// versionText reads a version; YAML makes a number of an unquoted 1.0.
func versionText(v wire.Value) (string, bool) {
	if text, ok := v.Str(); ok {
		return text, true
	}
	return v.Num()
}

// checkVersion holds a version to MESS-4: major 1, whatever the minor.
func checkVersion(v wire.Value, path string) error {
	text, ok := versionText(v)
	major, _, _ := strings.Cut(text, ".")
	if !ok || len(text) > 32 || strings.Trim(text, "0123456789.") != "" {
		return Bad(path, "must be a version such as 1.0.0")
	}
	if major != "1" {
		return Bad(path, "only version 1 is understood")
	}
	return nil
}

// Versioned puts the version before a block of ours: 1.1.0 only where a field of 1.1 is used (MESS-4).
func (b Block) Versioned() Block {
	v := Version10
	for _, e := range b {
		if uses11(e) {
			v = Version11
		}
	}
	return append(Block{{Type: "v", Body: wire.Text(v)}}, b...)
}

// uses11 reports whether an entry carries a field of the 1.1.0 draft.
func uses11(e Entry) bool {
	fields := map[string][]string{"request": {"needed_by", "confirm_before"}, "status": {"estimate"}}[e.Type]
	for _, f := range fields {
		if _, ok := e.Body.Get(f); ok {
			return true
		}
	}
	for _, list := range []string{"context", "content"} {
		entries, _ := e.Body.Get(list)
		for c := range entries.Elems() {
			if _, ok := c.Get("location"); ok {
				return true
			}
		}
	}
	return false
}

// CheckBounds holds a block that came inside a message to the bounds of MESS-61.
func (b Block) CheckBounds() error {
	_, err := ParseJSON(b.Tree().JSON())
	return err
}

// Action names a block by its first entry.
func (b Block) Action() string {
	for _, e := range b {
		if e.Type != "v" {
			return e.Type
		}
	}
	return "ack"
}

// ClosedConversation returns the closed conversation that a late response goes on with.
func ClosedConversation(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("mess_conversation")
}

// NeedsTree writes capabilities as they were sent: ids, or {id: metadata}.
func NeedsTree(list []Need) wire.Value {
	out := make([]wire.Value, len(list))
	for i, n := range list {
		out[i] = wire.Text(n.ID)
		if !n.Meta.IsNull() {
			out[i] = wire.Obj(wire.Field(n.ID, n.Meta))
		}
	}
	return wire.Arr(out...)
}
