package thread

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// The MESSE-AF thread file (MESS section 9): an envelope, then one document for each message and each ack.

// maxFile is the size in bytes beyond which a thread continues in the next file.
const maxFile = 1 << 20

// File is one file in the directory of a thread.
type File struct{ Name, Content string }

// FileSuffix is the end of the name of a thread file.
const FileSuffix = ".messe-af.yaml"

// FolderOf returns the directory of a state (MESS-48).
func FolderOf(c Code) string {
	switch c {
	case Received:
		return "state=received"
	case Claimed, InProgress, Waiting, Held, NeedsInput, NeedsConfirmation, Retrying:
		return "state=executing"
	case Completed, Partial:
		return "state=finished"
	}
	return "state=canceled"
}

// Folders returns the directories of all states.
func Folders() []string {
	return []string{"state=received", "state=executing", "state=finished", "state=canceled"}
}

// envelope returns the first document of the thread's files, with these events as history.
func (t *Thread) envelope(events []Event) wire.Value {
	v := wire.Obj(wire.TextField("ref", t.Ref)).WithOptional("client_id", t.ClientID).With("requestor", wire.Text(t.Requester)).
		With("executor", TextOrNull(t.Holder)).With("status", wire.Text(t.Status.RESTName())).
		With("created", TimeText(t.Created)).With("updated", TimeText(t.Updated))
	if !t.Deadline.IsZero() {
		v = v.With("expires", TimeText(t.Deadline))
	}
	if t.ConfirmBefore {
		v = v.With("confirm_before", wire.Bool(true))
	}
	v = v.With("intent", wire.Text(t.Intent)).With("priority", wire.Text(t.Priority))
	history := make([]wire.Value, len(events))
	for i, e := range events {
		h := wire.Obj(wire.TextField("action", e.Action), wire.Field("at", TimeText(e.At)), wire.TextField("by", e.By))
		history[i] = h.WithOptional("ref", e.Ref).WithOptional("note", e.Note)
	}
	return v.With("history", wire.Arr(history...))
}

// document returns the document of a message. re is a member of the document as well as of the entries (MESS-47).
func (m Message) document(re string) wire.Value {
	return wire.Obj(wire.TextField("from", m.From), wire.Field("received", TimeText(m.At))).
		WithOptional("channel", m.Channel).WithOptional("re", re).With("MESS", m.Mess)
}

// TextOrNull returns a text as a JSON value, or null for an empty one.
func TextOrNull(s string) wire.Value {
	if s == "" {
		return wire.Value{}
	}
	return wire.Text(s)
}

// DocumentsOf returns the documents after the envelope: the messages. An ack of the exchange follows each message,
// except refused messages and those of the exchange (MESS-49).
func DocumentsOf(t *Thread, messages []Message) []wire.Value {
	var out []wire.Value
	for _, m := range messages {
		re := ""
		if len(m.Re) > 0 {
			re = m.Re[0]
		}
		out = append(out, m.document(re))
		if m.From == ExchangeID || m.Channel == ChannelRefused {
			continue
		}
		ref, ackRe := m.Ref, m.Ref
		if m.Serial == 1 {
			ref, ackRe = t.Ref, cmp.Or(t.ClientID, "last")
		}
		ack := Message{From: ExchangeID, At: m.At, Mess: Block{NewEntry("ack", ackRe, wire.TextField("ref", ref))}.Tree()}
		out = append(out, ack.document(ackRe))
	}
	return out
}

// fileSize is the size of a part of a thread file. Files are kept below limits in each measure, so that [ParseFiles]
// accepts them (MESS-61). marks counts the characters that cost a YAML parser most (see [yamltree.Limits]).
type fileSize struct{ bytes, nodes, marks int }

// sizeOf returns the size of a document. It counts too many marks rather than too few.
func sizeOf(v wire.Value, text []byte) fileSize {
	s := fileSize{bytes: len(text), nodes: countNodes(v)}
	for _, c := range text {
		if strings.IndexByte("\n[]{},-?!&*", c) >= 0 {
			s.marks++
		}
	}
	return s
}

func countNodes(v wire.Value) int {
	n := 1
	for e := range v.Elems() {
		n += countNodes(e)
	}
	for _, m := range v.Members() {
		n += countNodes(m.Value)
	}
	return n
}

func (s fileSize) plus(o fileSize) fileSize {
	return fileSize{s.bytes + o.bytes, s.nodes + o.nodes, s.marks + o.marks}
}

// fits reports whether a file of this size stays within the limits. A file with one document may exceed them.
func (s fileSize) fits() bool {
	return s.bytes <= maxFile && s.nodes <= Limits.Nodes && s.marks <= Limits.Marks
}

// startFile returns the start of the first file: the envelope. If the history is too long for a file, the envelope has
// only the first event and the newest ones.
func (t *Thread) startFile() ([]byte, fileSize) {
	events := t.History
	for {
		v := t.envelope(events)
		text := yamltree.Append(nil, v)
		size := sizeOf(v, text)
		if size.fits() && len(events) <= MaxMessages || len(events) < 3 {
			return text, size
		}
		events = slices.Concat(events[:1], events[1+len(events)/2:])
	}
}

// ThreadFiles writes a thread in version 2 of the format: file 000-…, and 001-… and so on if a file becomes too large.
func ThreadFiles(t *Thread, messages []Message) []File {
	var files []File
	current, size := t.startFile()
	for _, doc := range DocumentsOf(t, messages) {
		text := yamltree.Append([]byte("---\n"), doc)
		added := sizeOf(doc, text)
		if added.marks > Limits.Marks { // escaped, the text has fewer
			text = yamltree.AppendEscaped([]byte("---\n"), doc)
			added = sizeOf(doc, text)
		}
		if !size.plus(added).fits() && len(current) > 0 {
			files = append(files, File{fmt.Sprintf("%03d-%s%s", len(files), t.Ref, FileSuffix), string(current)})
			current, size, text = nil, fileSize{}, text[len("---\n"):]
		}
		current, size = append(current, text...), size.plus(added)
	}
	return append(files, File{fmt.Sprintf("%03d-%s%s", len(files), t.Ref, FileSuffix), string(current)})
}

// ThreadText writes a thread as one text: version 1 of the format.
func ThreadText(t *Thread, messages []Message) string {
	var b bytes.Buffer
	for i, f := range ThreadFiles(t, messages) {
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(f.Content)
	}
	return b.String()
}

// ParsedFile is the content of the files of a thread.
type ParsedFile struct {
	Thread    *Thread
	Documents []wire.Value // after the envelope, as read
	Messages  []Message    // of the documents, in the same order
}

// fileLimits are the limits of a thread file. They exceed those of a block, because a document is a map around a block.
var fileLimits = func() yamltree.Limits {
	l := Limits
	l.Depth += 2
	l.Nodes += 10
	return l
}()

// ParseFiles reads the files of one thread in order; version 1 has one file. Unquoted timestamps count as texts, re may
// be a member of the document or of its entries, and a document that is not a message is refused.
func ParseFiles(files ...[]byte) (ParsedFile, error) {
	var docs []wire.Value
	for _, data := range files {
		part, err := parseYAML(data, fileLimits)
		if err != nil {
			return ParsedFile{}, err
		}
		docs = append(docs, Values(part)...)
	}
	if len(docs) == 0 {
		return ParsedFile{}, Bad("envelope", "is missing")
	}
	t, err := readEnvelope(docs[0])
	if err != nil {
		return ParsedFile{}, err
	}
	f := ParsedFile{Thread: t, Documents: docs[1:]}
	for i, doc := range f.Documents {
		m, err := readDocument(doc, t)
		if err != nil {
			return ParsedFile{}, Bad(fmt.Sprintf("document %d", i+2), PublicText(err)) // the envelope is document 1
		}
		f.Messages = append(f.Messages, m)
	}
	return f, nil
}

// PublicText returns the text of an error for the sender of the input: the text of a refusal, and a general text for
// any other error.
func PublicText(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Message
	}
	return "is not acceptable"
}

// readEnvelope reads the first document. The ref is checked before it is used as a name (MESS-64).
func readEnvelope(v wire.Value) (*Thread, error) {
	f := NewFields(v, "envelope")
	t := &Thread{
		Ref: f.Required("ref", 128), ClientID: f.Text("client_id", MaxID), Requester: f.Text("requestor", maxName),
		Holder: f.Text("executor", maxName), Intent: f.Required("intent", maxIntent),
		Priority: f.OneOf("priority", "normal", Priorities...),
	}
	f.Check(IsThreadRef(t.Ref), "ref", "is not the ref of a thread")
	code, ok := ParseCode(f.Required("status", 40))
	f.Check(ok, "status", "is not a status")
	t.Status = code
	t.Created, t.Updated = f.fileTime("created"), f.fileTime("updated")
	if t.Updated.Before(t.Created) {
		t.Updated = t.Created
	}
	expires := f.fileTime("expires")
	t.Deadline = cmp.Or(f.fileTime("needed_by"), expires)
	t.ConfirmBefore, _ = f.Boolean("confirm_before")
	for i, h := range f.List("history", MaxMessages) {
		g := f.In(h, fmt.Sprintf("history[%d]", i))
		t.History = append(t.History, Event{
			Action: g.Text("action", 64), At: g.fileTime("at"), By: g.Text("by", maxName), Ref: g.Text("ref", maxName), Note: g.Text("note", MaxProse),
		})
	}
	t.Requester = cmp.Or(t.Requester, unknownID)
	if len(t.History) == 0 {
		t.History = []Event{{Action: "created", At: t.Created, By: t.Requester}}
	}
	if code == Completed || code == Partial {
		t.Ended = t.Updated
	}
	return t, f.Err()
}

// fileTime reads a time in a file: RFC 3339, or a form that other tools write (a blank instead of T, a missing offset
// for UTC, a date).
func (f *Fields) fileTime(key string) time.Time {
	v, ok := f.Get(key)
	if !ok {
		return time.Time{}
	}
	// a public PHP server writes times as seconds
	if n, ok := ReadWhole(v); ok && n > 0 && n < 1<<33 {
		return time.Unix(n, 0).UTC()
	}
	s, _ := v.Str()
	if at, ok := wire.ParseTime(s); ok {
		return at.UTC().Round(time.Millisecond)
	}
	at, ok := wire.ParseISO8601(strings.Replace(s, " ", "T", 1))
	f.Check(ok, key, "must be a time")
	return at.UTC()
}

// readDocument reads a message document.
func readDocument(doc wire.Value, t *Thread) (Message, error) {
	f := NewFields(doc, "message")
	m := Message{From: f.Required("from", maxName), At: f.fileTime("received"), Channel: f.Text("channel", 64), Re: f.Refs("re", Optional)}
	m.At = cmp.Or(m.At, t.Updated)
	mess, ok := f.Get("MESS")
	f.Check(ok, "MESS", "is required")
	if err := f.Err(); err != nil {
		return m, err
	}
	b, err := FromTree(mess)
	m.Mess = b.Tree()
	return m, err
}

// adoptQuestions applies one entry of a thread file to the questions of a thread that needs input.
func (t *Thread) adoptQuestions(e Entry) {
	answers, _ := e.Body.Get("answers")
	switch {
	case t.Status != NeedsInput:
	case e.Type == "status":
		if s, err := ReadStatus(e.Body, "", Lax); err == nil && s.Code == NeedsInput {
			t.Questions = s.Questions
		}
	case e.Type == "answer" || e.Type == "reply":
		for i, q := range t.Questions {
			if _, ok := answers.Get(q.ID); ok || q.ID != "" && q.ID == e.Body.GetStr("id") {
				t.Questions[i].Answered = true
			}
		}
	}
}

// Adopt returns the thread and the messages of the files as ours, without acks. The thread has the state that the
// envelope names. If it waits without a holder, only the owner can release it, because the files do not say why it
// waits.
func (f ParsedFile) Adopt() (*Thread, []Message) {
	t := f.Thread
	var messages []Message
	for _, m := range f.Messages {
		b := m.Block()
		if b.HasOnly("ack") {
			continue
		}
		for _, e := range b {
			if e.Type != "request" || t.Serial > 0 {
				continue
			}
			if r, err := ReadRequest(e.Body, "request", t.Created); err == nil {
				t.Requires, t.NotBefore = r.Requires, r.NotBefore
				t.Deadline = cmp.Or(t.Deadline, r.Deadline)
				t.ClientID = cmp.Or(t.ClientID, r.ID)
				t.ConfirmBefore = t.ConfirmBefore || r.ConfirmBefore
			}
		}
		t.Serial++
		m.Serial = t.Serial
		m.Ref = NewMessageRef(t.Ref, b.Head(), m.Serial)
		for _, e := range b {
			t.adoptQuestions(e)
		}
		t.Bytes += len(wire.MustMarshal(m))
		messages = append(messages, m)
	}
	if t.Serial == 0 {
		t.Serial = 1
		messages = []Message{{Serial: 1, From: t.Requester, At: t.Created, Mess: Block{{Type: "request", Body: wire.Obj(wire.TextField("intent", t.Intent))}}.Tree()}}
	}
	if t.Holder == "" && (t.Status == Waiting || t.Status == Held) {
		t.Parked = ParkedApproval
	}
	t.Offered, t.Version = true, 1
	return t, messages
}
