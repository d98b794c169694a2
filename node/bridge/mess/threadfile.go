package mess

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/yamltree"
)

// The MESSE-AF thread file (MESS section 9): an envelope, then one document for each message.

// maxFile is where a thread goes on in the next file.
const maxFile = 1 << 20

// File is one file of a thread's directory.
type File struct{ Name, Content string }

const fileEnd = ".messe-af.yaml"

// folder is the directory of a state (MESS-48).
func folder(c Code) string {
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

// folders lists the directories of all states.
func folders() []string {
	return []string{"state=received", "state=executing", "state=finished", "state=canceled"}
}

// envelope writes the first document.
func (t *Thread) envelope() wire.Value {
	v := wire.Obj(wire.Member{Key: "ref", Value: wire.Text(t.Ref)})
	if t.ClientID != "" {
		v = v.With("client_id", wire.Text(t.ClientID))
	}
	holder := wire.Value{}
	if t.Holder != "" {
		holder = wire.Text(t.Holder)
	}
	v = v.With("requestor", wire.Text(t.Requester)).With("executor", holder).With("status", wire.Text(t.Status.rest())).
		With("created", stamp(t.Created)).With("updated", stamp(t.Updated))
	if !t.Deadline.IsZero() {
		v = v.With("expires", stamp(t.Deadline))
	}
	if t.ConfirmBefore {
		v = v.With("confirm_before", wire.Bool(true))
	}
	v = v.With("intent", wire.Text(t.Intent)).With("priority", wire.Text(t.Priority))
	history := make([]wire.Value, len(t.History))
	for i, e := range t.History {
		h := wire.Obj(wire.Member{Key: "action", Value: wire.Text(e.Action)}, wire.Member{Key: "at", Value: stamp(e.At)}, wire.Member{Key: "by", Value: wire.Text(e.By)})
		if e.Ref != "" {
			h = h.With("ref", wire.Text(e.Ref))
		}
		if e.Note != "" {
			h = h.With("note", wire.Text(e.Note))
		}
		history[i] = h
	}
	return v.With("history", wire.Arr(history...))
}

// document writes a message. re stands at document level as well as inside (MESS-47).
func (m Message) document(re string) wire.Value {
	v := wire.Obj(wire.Member{Key: "from", Value: wire.Text(m.From)}, wire.Member{Key: "received", Value: stamp(m.At)})
	if m.Channel != "" {
		v = v.With("channel", wire.Text(m.Channel))
	}
	if re != "" {
		v = v.With("re", wire.Text(re))
	}
	return v.With("MESS", m.Mess)
}

// documentsOf lists the documents of a thread behind its envelope: every message of somebody, and the exchange's ack
// after it (MESS-49).
func documentsOf(t *Thread, messages []Message) []wire.Value {
	var out []wire.Value
	for _, m := range messages {
		re := ""
		if len(m.Re) > 0 {
			re = m.Re[0]
		}
		out = append(out, m.document(re))
		if m.From == exchangeID || m.Channel == channelRefused {
			continue
		}
		ref, about := m.Ref, m.Ref
		if m.Serial == 1 {
			ref, about = t.Ref, cmp.Or(t.ClientID, "last")
		}
		ack := Message{From: exchangeID, At: m.At, Mess: Block{{Type: "ack", Body: wire.Obj(
			wire.Member{Key: "re", Value: wire.Text(about)}, wire.Member{Key: "ref", Value: wire.Text(ref)})}}.Tree()}
		out = append(out, ack.document(about))
	}
	return out
}

// ThreadFiles writes a thread as version 2 of the format: 000-…, and 001-… and so on where one becomes too large.
func ThreadFiles(t *Thread, messages []Message) []File {
	var files []File
	current := yamltree.Append(nil, t.envelope())
	for _, doc := range documentsOf(t, messages) {
		text := append([]byte("---\n"), yamltree.Append(nil, doc)...)
		if len(current)+len(text) > maxFile && len(current) > 0 {
			files = append(files, File{fmt.Sprintf("%03d-%s%s", len(files), t.Ref, fileEnd), string(current)})
			current, text = nil, text[len("---\n"):]
		}
		current = append(current, text...)
	}
	return append(files, File{fmt.Sprintf("%03d-%s%s", len(files), t.Ref, fileEnd), string(current)})
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

// threadFile is what was read from the files of a thread.
type threadFile struct {
	thread *Thread
	docs   []wire.Value // behind the envelope, as read
}

// ParseThread reads the files of one thread, in order; version 1 is one file. Bare timestamps are texts, re may stand at
// either level, and a document that is no message is refused.
func parseThread(files ...[]byte) (threadFile, error) {
	var docs []wire.Value
	for _, data := range files {
		part, err := parseYAML(data)
		if err != nil {
			return threadFile{}, err
		}
		docs = append(docs, values(part)...)
	}
	if len(docs) == 0 {
		return threadFile{}, bad("envelope", "is missing")
	}
	t, err := readEnvelope(docs[0])
	if err != nil {
		return threadFile{}, err
	}
	for i, doc := range docs[1:] {
		if _, _, err := readDocument(doc, t); err != nil {
			return threadFile{}, bad(fmt.Sprintf("document %d", i+2), publicText(err))
		}
	}
	return threadFile{thread: t, docs: docs[1:]}, nil
}

func publicText(err error) string {
	if e, ok := errors.AsType[*wire.Error](err); ok {
		return e.Message
	}
	return "is not acceptable"
}

// readEnvelope reads the first document. Its ref is judged before it names anything (MESS-64).
func readEnvelope(v wire.Value) (*Thread, error) {
	f := in(v, "envelope")
	t := &Thread{
		Ref: f.need("ref", 128), ClientID: f.text("client_id", maxID), Requester: f.text("requestor", maxName),
		Holder: f.text("executor", maxName), Intent: f.need("intent", maxIntent),
		Priority: f.oneOf("priority", "normal", priorities...),
	}
	f.check(validThreadRef(t.Ref), "ref", "is no thread ref")
	code, ok := ParseCode(f.need("status", 40))
	f.check(ok, "status", "is no status")
	t.Status = code
	t.Created, t.Updated = f.instant("created"), f.instant("updated")
	if t.Updated.Before(t.Created) {
		t.Updated = t.Created
	}
	t.Deadline = f.instant("expires")
	if at := f.instant("needed_by"); !at.IsZero() {
		t.Deadline = at
	}
	t.ConfirmBefore, _ = f.boolean("confirm_before")
	for i, h := range f.list("history", maxMessages) {
		g := in(h, f.at("history["+itoa(i)+"]"))
		t.History = append(t.History, Event{
			Action: g.text("action", 64), At: g.instant("at"), By: g.text("by", maxName), Ref: g.text("ref", maxName), Note: g.text("note", maxProse),
		})
		f.join(g)
	}
	if t.Requester == "" {
		t.Requester = unknownID
	}
	if len(t.History) == 0 {
		t.History = []Event{{Action: "created", At: t.Created, By: t.Requester}}
	}
	if code == Completed || code == Partial {
		t.Ended = t.Updated
	}
	return t, f.err
}

// instant reads a time of a file: RFC 3339, or what other tools write (a blank for the T, no offset: UTC, a date).
func (f *fields) instant(key string) time.Time {
	v, ok := f.get(key)
	if !ok {
		return time.Time{}
	}
	if n, ok := whole(v); ok && n > 0 && n < 1<<33 { // PHP's reader made seconds of it, and its writer kept them
		return time.Unix(n, 0).UTC()
	}
	s, _ := v.Str()
	if at, ok := wire.ParseTime(s); ok {
		return at.UTC().Round(time.Millisecond)
	}
	at, ok := wire.ParseISO8601(strings.Replace(s, " ", "T", 1))
	f.check(ok, key, "must be a time")
	return at.UTC()
}

// readDocument reads a message document.
func readDocument(doc wire.Value, t *Thread) (Message, Block, error) {
	f := in(doc, "message")
	m := Message{From: f.need("from", maxName), At: f.instant("received"), Channel: f.text("channel", 64), Re: f.refs("re", false)}
	if m.At.IsZero() {
		m.At = t.Updated
	}
	mess, ok := f.get("MESS")
	f.check(ok, "MESS", "is required")
	if f.err != nil {
		return m, nil, f.err
	}
	b, err := fromTree(mess, 0)
	if err != nil {
		return m, nil, err
	}
	if len(b) == 0 {
		return m, nil, bad("MESS", "the block has no entry")
	}
	m.Mess = b.Tree()
	return m, b, nil
}

// isAck says whether a block is nothing but the exchange's acks.
func isAck(b Block) bool {
	for _, e := range b {
		if e.Type != "ack" && e.Type != "v" {
			return false
		}
	}
	return true
}

// adopt makes the thread of a file one of ours, as the file says it stands. It is for the owner's imports.
func (f threadFile) adopt() (*Thread, []Message, error) {
	t := f.thread
	var messages []Message
	for _, doc := range f.docs {
		m, b, err := readDocument(doc, t)
		if err != nil {
			return nil, nil, err
		}
		if isAck(b) {
			continue
		}
		for _, e := range b {
			if e.Type != "request" || t.Serial > 0 {
				continue
			}
			if r, err := readRequest(e.Body, "request", t.Created); err == nil {
				t.Requires, t.Precision, t.Urgency, t.NotBefore = r.Requires, r.Precision, r.Urgency, r.NotBefore
				t.Deadline = latest(t.Deadline, r.Deadline)
				t.ClientID = cmp.Or(t.ClientID, r.ID)
				t.ConfirmBefore = t.ConfirmBefore || r.ConfirmBefore
			}
		}
		t.Serial++
		m.Serial = t.Serial
		m.Ref = messageRef(t.Ref, b[min(len(b)-1, boolInt(b[0].Type == "v"))], m.Serial)
		if t.Status == NeedsInput {
			for _, e := range b {
				if s, err := readStatus(e.Body, "", true); e.Type == "status" && err == nil && s.Code == NeedsInput {
					t.Questions = s.Questions
				}
			}
		}
		t.Bytes += len(encode(m))
		messages = append(messages, m)
	}
	if t.Serial == 0 {
		t.Serial = 1
		messages = []Message{{Serial: 1, From: t.Requester, At: t.Created, Mess: Block{{Type: "request", Body: wire.Obj(wire.Member{Key: "intent", Value: wire.Text(t.Intent)})}}.Tree()}}
	}
	t.Offered, t.Version = true, 1
	return t, messages, nil
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func latest(a, b time.Time) time.Time {
	if a.IsZero() {
		return b
	}
	return a
}
