package mess

import (
	"fmt"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Check holds every entry of the block to what its type must carry, as the door for raw blocks does. It says nothing
// about who may send it, and unknown types pass (MESS-5).
func (b Block) Check(now time.Time) error {
	for i, e := range b {
		if err := e.check(fmt.Sprintf("MESS[%d].%s", i, e.Type), now, false); err != nil {
			return err
		}
	}
	return nil
}

func (e Entry) check(path string, now time.Time, lax bool) error {
	var err error
	switch e.Type {
	case "v":
		return checkVersion(e.Body, path)
	case "request":
		_, err = readRequest(e.Body, path, now)
	case "status":
		_, err = readStatus(e.Body, path, lax)
	case "response":
		_, err = readResponse(e.Body, path, lax)
	case "reply":
		_, err = readReplyIn(e.Body, path, lax)
	case "answer":
		_, err = readAnswer(e.Body, path)
	case "cancel":
		_, err = readCancel(e.Body, path, lax)
	case "query":
		_, err = readQuery(e.Body, path)
	case "config":
		_, err = readConfig(e.Body, path)
	case "suggestion":
		_, err = readSuggestion(e.Body, path)
	case "ack":
		err = in(e.Body, path).err
	}
	return err
}

// Response is a delivered result.
type Response struct {
	Re   []string
	Body wire.Value
}

func readResponse(v wire.Value, path string, lax bool) (Response, error) {
	f := in(v, path)
	r := Response{Re: f.refs("re", !lax), Body: v}
	f.check(f.has("content") || lax, "content", "is required")
	f.content("content", true)
	f.text("executor", maxName)
	f.text("notes", maxProse)
	f.text("id", maxID)
	f.time("completed_at")
	return r, f.err
}

// Reply answers questions, confirms an action or decides about a suggestion: exactly one of the three (MESS-33).
type Reply struct {
	Re      []string
	Answers wire.Value
	Confirm *bool
	Accept  *bool
	Reason  string
	Body    wire.Value
}

func readReply(v wire.Value, path string) (Reply, error) { return readReplyIn(v, path, false) }

// readReplyIn reads a reply; lax says that it may stand where the thread is known without its reference.
func readReplyIn(v wire.Value, path string, lax bool) (Reply, error) {
	f := in(v, path)
	r := Reply{Re: f.refs("re", !lax), Reason: f.text("reason", maxProse), Body: v}
	kinds := 0
	if a := f.sub("answers"); a != nil {
		r.Answers = a.v
		kinds++
	}
	for _, key := range []string{"confirm", "accept"} {
		value, there := f.boolean(key)
		if !there {
			continue
		}
		kinds++
		if key == "confirm" {
			r.Confirm = new(value)
		} else {
			r.Accept = new(value)
		}
	}
	f.check(kinds == 1, "", "must have one of answers, confirm and accept")
	f.content("context", false)
	return r, f.err
}

// Answer is the answer to one question (F).
type Answer struct {
	Re    []string // empty: the only open question
	ID    string
	Value wire.Value
	Body  wire.Value
}

func readAnswer(v wire.Value, path string) (Answer, error) {
	f := in(v, path)
	a := Answer{Re: f.refs("re", false), ID: f.text("id", maxID), Body: v}
	value, ok := f.get("value")
	if !ok {
		value, ok = f.get("text")
	}
	f.check(ok, "value", "is required")
	a.Value = value
	return a, f.err
}

// Cancel takes requests back.
type Cancel struct {
	Re     []string
	Reason string
	Body   wire.Value
}

func readCancel(v wire.Value, path string, lax bool) (Cancel, error) {
	f := in(v, path)
	return Cancel{Re: f.refs("re", !lax), Reason: f.reason(false), Body: v}, f.err
}

// Query asks the exchange; filters combine with and (MESS-36).
type Query struct {
	Type     string
	Re       []string
	Status   []Code
	Executor string
	Since    time.Time
	Tags     []string
}

func readQuery(v wire.Value, path string) (Query, error) {
	f := in(v, path)
	q := Query{Type: f.oneOf("type", "", "status", "capabilities", "executors")}
	f.check(q.Type != "", "type", "is required")
	if g := f.sub("filter"); g != nil {
		q.Re = g.refs("re", false)
		q.Executor = g.text("executor", maxName)
		q.Since, _ = g.time("since")
		q.Tags = g.texts("tags", 100)
		words := []string(nil)
		if s := g.v.GetStr("status"); s != "" {
			words = []string{s}
		} else {
			words = g.texts("status", 50)
		}
		for _, w := range words {
			c, ok := ParseCode(w)
			g.check(ok, "status", "must hold status codes")
			q.Status = append(q.Status, c)
		}
		f.join(g)
	}
	return q, f.err
}

func entryPath(i int, e Entry) string { return fmt.Sprintf("MESS[%d].%s", i, e.Type) }
