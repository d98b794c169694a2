package thread

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// MaxDocument bounds one block in bytes, as YAML or JSON (MESS-58).
const MaxDocument = 2 << 20

// Limits are the limits of a block (MESS-61). The depth leaves room for the message around the block, which may be
// [wire.MaxDepth] deep.
var Limits = yamltree.Limits{Bytes: MaxDocument, Depth: 28, Nodes: 10_000, Keys: 1_000, KeyBytes: 512, Marks: 40_000}

// Entry is one entry of a block: its type, and its body as received.
type Entry struct {
	Type string
	Body wire.Value
}

// NewEntry returns an entry about the thread or message that re names.
func NewEntry(entryType, re string, fields ...wire.Member) Entry {
	return Entry{Type: entryType, Body: wire.Obj(slices.Concat([]wire.Member{wire.TextField("re", re)}, fields)...)}
}

// NewStatus returns a status of the thread that re names.
func NewStatus(re string, code Code, fields ...wire.Member) Entry {
	return NewEntry("status", re, slices.Concat([]wire.Member{wire.TextField("code", string(code))}, fields)...)
}

// Block is an ordered list of entries (MESS-1). Entries of unknown types are kept (MESS-5).
type Block []Entry

// Tree returns the block as a JSON list.
func (b Block) Tree() wire.Value {
	elems := make([]wire.Value, len(b))
	for i, e := range b {
		elems[i] = wire.Obj(wire.Field(e.Type, e.Body))
	}
	return wire.Arr(elems...)
}

// Parse reads a block in any form of MESS-2. It checks only the shape of the list; [Block.Check] checks the entries.
// The error is a *wire.Error with the place of the fault.
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

// ParseDocuments reads JSON if the text looks like JSON, and a YAML stream otherwise. If the strict JSON reader refuses
// the text, ParseDocuments does not try YAML, which would accept most such texts.
func ParseDocuments(data []byte) ([]yamltree.Document, error) {
	if len(data) > MaxDocument {
		return nil, newTooLongError(data)
	}
	if text := strings.TrimLeft(string(data[:min(len(data), 4096)]), " \t\r\n"); looksJSON(text) {
		v, err := ParseJSON(data)
		return []yamltree.Document{{Value: v, Line: 1}}, err
	}
	return parseYAML(data, Limits)
}

// Values returns the values of the documents.
func Values(docs []yamltree.Document) []wire.Value {
	out := make([]wire.Value, len(docs))
	for i, doc := range docs {
		out[i] = doc.Value
	}
	return out
}

func parseYAML(data []byte, limits yamltree.Limits) ([]yamltree.Document, error) {
	docs, err := yamltree.Parse(data, yamltree.Options{Limits: limits})
	if e, ok := errors.AsType[*yamltree.Error](err); ok && e.Size {
		return nil, newTooLongError(data)
	}
	if err != nil {
		return nil, Bad("", err.Error())
	}
	return docs, nil
}

func newTooLongError(data []byte) error {
	return TooLarge(fmt.Sprintf("the document is larger than 2 MiB at line %d", yamltree.LineAt(data, MaxDocument)))
}

// looksJSON reports whether a text is to be read as JSON rather than as YAML in flow style: a text that begins with a
// bracket, or with a brace before a quote, another brace, a closing bracket or the end of the text.
func looksJSON(text string) bool {
	if text == "" || text[0] != '{' && text[0] != '[' {
		return false
	}
	rest := strings.TrimLeft(text[1:], " \t\r\n")
	return rest == "" || rest[0] == '"' || rest[0] == '{' || rest[0] == '}' || rest[0] == ']' || text[0] == '['
}

// ParseJSON reads strict JSON within the limits of MESS-61.
func ParseJSON(data []byte) (wire.Value, error) {
	if len(data) > MaxDocument {
		return wire.Value{}, newTooLongError(data)
	}
	v, err := wire.ParseLimits(data, Limits.Depth, Limits.Nodes)
	if err != nil {
		line, reason := 1, "not JSON"
		if e, ok := errors.AsType[*wire.SyntaxError](err); ok {
			line, reason = yamltree.LineAt(data, e.Offset), e.Reason
		}
		return v, Bad("", fmt.Sprintf("%s at line %d", reason, line))
	}
	return v, checkTree(v)
}

// checkTree refuses what strict JSON allows and a block does not: NUL, long keys, and maps with too many keys.
func checkTree(v wire.Value) error {
	if text, ok := v.Str(); ok && strings.ContainsRune(text, 0) {
		return Bad("", "a text contains NUL")
	}
	if v.Kind() == wire.Object && v.Len() > Limits.Keys {
		return Bad("", "too many keys in one map")
	}
	for _, m := range v.Members() {
		if strings.ContainsRune(m.Key, 0) || len(m.Key) > Limits.KeyBytes {
			return Bad("", "a key is too long or contains NUL")
		}
		if err := checkTree(m.Value); err != nil {
			return err
		}
	}
	for e := range v.Elems() {
		if err := checkTree(e); err != nil {
			return err
		}
	}
	return nil
}

// FromTree returns the block of a tree: a list of entries, or a map whose only key MESS has that list.
func FromTree(v wire.Value) (Block, error) {
	b, err := FromTreeAt(v, 0)
	if err == nil && len(b) == 0 {
		return nil, Bad("MESS", "the block has no entry")
	}
	return b, err
}

// FromTreeAt is like [FromTree] for a part of a block. The part may be empty. first is the number of entries before the
// part, for the paths in refusals.
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

// YAML returns the block as a document "MESS: …".
func (b Block) YAML() []byte {
	return yamltree.Append(nil, wire.Obj(wire.Field("MESS", b.Tree())))
}

// JSON returns the block as {"MESS": […]}.
func (b Block) JSON() []byte {
	return wire.Obj(wire.Field("MESS", b.Tree())).JSON()
}

// checkVersion implements MESS-4: the major version must be 1, with any minor version.
func checkVersion(v wire.Value, path string) error {
	text, ok := v.Str()
	if !ok { // YAML reads an unquoted 1.0 as a number
		text, ok = v.Num()
	}
	major, _, _ := strings.Cut(text, ".")
	if !ok || len(text) > 32 || strings.Trim(text, "0123456789.") != "" {
		return Bad(path, "must be a version such as 1.0.0")
	}
	if major != "1" {
		return Bad(path, "only version 1 is understood")
	}
	return nil
}

// AddVersion returns the block, and puts a version entry first if it has none (MESS-4). The version is 1.1.0 if the
// block uses a field of the 1.1.0 draft, and 1.0.0 otherwise.
func (b Block) AddVersion() Block {
	if b.Has("v") {
		return b
	}
	v := "1.0.0"
	if slices.ContainsFunc(b, uses11) {
		v = "1.1.0"
	}
	return append(Block{{Type: "v", Body: wire.Text(v)}}, b...)
}

// uses11 reports whether an entry has a field of the 1.1.0 draft.
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

// CheckBounds checks a block that came inside a message against the limits of MESS-61.
func (b Block) CheckBounds() error {
	_, err := ParseJSON(b.Tree().JSON())
	return err
}

// Head returns the first entry that is not a version, or a version if the block has nothing else.
func (b Block) Head() Entry {
	i := slices.IndexFunc(b, func(e Entry) bool { return e.Type != "v" })
	return b[max(i, 0)]
}

// Action returns the type of the first entry that is not a version, or "ack" if the block has no such entry.
func (b Block) Action() string {
	if b.HasOnly() {
		return "ack"
	}
	return b.Head().Type
}

// ClosedConversation returns the closed conversation that a late response continues, or "".
func ClosedConversation(payload wire.Value) string {
	meta, _ := payload.Get("metadata")
	return meta.GetStr("mess_conversation")
}

// NeedsTree returns capabilities as they were sent: ids, or {id: metadata}.
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
