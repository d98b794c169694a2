package thread

import (
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Values of the parameter lax of [Entry.Check] and the Read functions.
const (
	Strict = false
	Lax    = true
)

// Check checks that every entry of the block has what its type requires. It does not check who may send it, and it
// accepts unknown types (MESS-5).
func (b Block) Check(now time.Time) error {
	for i, e := range b {
		if err := e.Check(EntryPath(i, e), now, Strict); err != nil {
			return err
		}
	}
	return nil
}

// Check checks that the entry has what its type requires. path names the entry in refusals. lax is for an entry whose
// thread is known: a status, response, reply or cancel may then omit its references, a status also the members that its
// code requires, and a response its content.
func (e Entry) Check(path string, now time.Time, lax bool) error {
	var err error
	switch e.Type {
	case "v":
		return checkVersion(e.Body, path)
	case "request":
		_, err = ReadRequest(e.Body, path, now)
	case "status":
		_, err = ReadStatus(e.Body, path, lax)
	case "response":
		_, err = ReadResponse(e.Body, path, lax)
	case "reply":
		_, err = ReadReply(e.Body, path, lax)
	case "answer":
		_, err = ReadAnswer(e.Body, path)
	case "cancel":
		_, err = ReadCancel(e.Body, path, lax)
	case "query":
		_, err = ReadQuery(e.Body, path)
	case "config":
		_, err = ReadConfig(e.Body, path)
	case "suggestion":
		_, err = ReadSuggestion(e.Body, path)
	case "ack":
		err = NewFields(e.Body, path).Err()
	}
	return err
}

// ReadResponse checks a response, which delivers a result, and returns its references. With lax, the response may omit
// its reference and its content.
func ReadResponse(v wire.Value, path string, lax bool) (re []string, err error) {
	f := NewFields(v, path)
	re = f.Refs("re", !lax)
	f.Check(f.has("content") || lax, "content", "is required")
	f.checkContents("content")
	f.Text("executor", maxName)
	f.Text("notes", MaxProse)
	f.Text("id", MaxID)
	f.time("completed_at")
	return re, f.Err()
}

// Reply answers questions, confirms an action or decides about a suggestion: exactly one of the three (MESS-33).
type Reply struct {
	Re      []string
	Answers wire.Value
	Confirm *bool
	Accept  *bool
	Reason  string
}

// ReadReply reads a reply. With lax, the reply may omit its reference.
func ReadReply(v wire.Value, path string, lax bool) (Reply, error) {
	f := NewFields(v, path)
	r := Reply{Re: f.Refs("re", !lax), Reason: f.Text("reason", MaxProse)}
	kinds := 0
	if a := f.Sub("answers"); a != nil {
		r.Answers = a.Value
		kinds++
	}
	for _, key := range []string{"confirm", "accept"} {
		value, present := f.Boolean(key)
		if !present {
			continue
		}
		kinds++
		if key == "confirm" {
			r.Confirm = new(value)
		} else {
			r.Accept = new(value)
		}
	}
	f.Check(kinds == 1, "", "must have exactly one of answers, confirm and accept")
	f.checkContents("context")
	return r, f.Err()
}

// Answer is the answer to one question (1.1 draft).
type Answer struct {
	Re []string // empty means the only open question
	ID string
}

// ReadAnswer reads an answer.
func ReadAnswer(v wire.Value, path string) (Answer, error) {
	f := NewFields(v, path)
	a := Answer{Re: f.Refs("re", Optional), ID: f.Text("id", MaxID)}
	f.Check(f.has("value") || f.has("text"), "value", "is required")
	return a, f.Err()
}

// Cancel withdraws requests.
type Cancel struct {
	Re     []string
	Reason string
}

// ReadCancel reads a cancel.
func ReadCancel(v wire.Value, path string, lax bool) (Cancel, error) {
	f := NewFields(v, path)
	return Cancel{Re: f.Refs("re", !lax), Reason: f.Reason(Optional)}, f.Err()
}

// Query is a question to the exchange, the server. The answer has only what matches all filters (MESS-36).
type Query struct {
	Type     string
	Re       []string
	Status   []Code
	Executor string
	Since    time.Time
	Tags     []string
}

// ReadQuery reads a query.
func ReadQuery(v wire.Value, path string) (Query, error) {
	f := NewFields(v, path)
	q := Query{Type: f.OneOf("type", "", "status", "capabilities", "executors")}
	f.Check(q.Type != "", "type", "is required")
	if g := f.Sub("filter"); g != nil {
		q.Re = g.Refs("re", Optional)
		q.Executor = g.Text("executor", maxName)
		q.Since, _ = g.time("since")
		q.Tags = g.Texts("tags", 100)
		words := []string(nil)
		if s := g.Value.GetStr("status"); s != "" {
			words = []string{s}
		} else {
			words = g.Texts("status", 50)
		}
		for _, w := range words {
			c, ok := ParseCode(w)
			g.Check(ok, "status", "must hold status codes")
			q.Status = append(q.Status, c)
		}
	}
	return q, f.Err()
}

// EntryPath returns the path of entry number i of a block for refusals.
func EntryPath(i int, e Entry) string { return fmt.Sprintf("MESS[%d].%s", i, e.Type) }
