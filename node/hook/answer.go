package hook

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

// answerReader parses the output of a hook: one JSON object, or a stream with one object per line. The last object is
// the answer, and the objects before it are progress. The caller bounds the size of the output.
type answerReader struct {
	intent   wire.Intent
	tap      io.Writer    // gets all output; may be nil
	progress func(Result) // gets each object with progress, as soon as its line ends; may be nil
	isStream bool         // set by the caller, or if the first line is a complete object

	buf     []byte // output that is not parsed yet
	scanned int    // this many bytes of buf have no line end
	whole   bool   // the output is one object over several lines
	last    object // the last object so far
	result  Result // the tasks and artifacts of all objects so far, merged
	err     error
}

var _ io.Writer = (*answerReader)(nil)

// Write parses the complete lines. It stops at the first error in the stream and returns it.
func (r *answerReader) Write(p []byte) (int, error) {
	if r.tap != nil {
		_, _ = r.tap.Write(p)
	}
	if r.err != nil {
		return 0, r.err
	}
	r.buf = append(r.buf, p...)
	for !r.whole {
		i := bytes.IndexByte(r.buf[r.scanned:], '\n')
		if i < 0 {
			r.scanned = len(r.buf)
			break
		}
		end := r.scanned + i
		line := bytes.TrimSpace(r.buf[:end])
		if len(line) > 0 && !r.isStream {
			if _, err := wire.ParseObject(line); err != nil {
				r.whole = true
				break
			}
			r.isStream = true
		}
		if len(line) > 0 {
			if r.err = r.take(line); r.err != nil {
				return 0, r.err
			}
		}
		r.buf, r.scanned = r.buf[end+1:], 0
	}
	return len(p), nil
}

// readFrom reads and closes a body that is a stream, at most maxOutput bytes. finish returns errors in the objects.
func (r *answerReader) readFrom(body io.ReadCloser) error {
	defer body.Close()
	n, err := io.Copy(r, io.LimitReader(body, maxOutput+1))
	switch {
	case r.err != nil:
		return nil
	case err != nil:
		return fmt.Errorf("read the stream: %w", err)
	case n > maxOutput:
		return client.ErrAnswerTooLarge
	}
	return nil
}

// take parses one object of the output.
func (r *answerReader) take(text []byte) error {
	if r.last.isFinal() {
		return errors.New("something follows the object that ends the answer")
	}
	o, err := parseObject(text)
	if err != nil {
		return err
	}
	r.last = o
	if err := r.result.merge(o.result); err != nil {
		return err
	}
	if !o.isFinal() && !o.result.isZero() && r.progress != nil {
		r.progress(o.result)
	}
	return nil
}

// finish returns the answer at the end of the output.
func (r *answerReader) finish() (Answer, error) {
	if rest := bytes.TrimSpace(r.buf); r.err == nil && len(rest) > 0 {
		r.err = r.take(rest)
	}
	if r.err != nil {
		return Answer{}, r.err
	}
	o := r.last
	switch {
	case o.hold != "":
		return Answer{Hold: o.hold}, nil
	case o.refusal != nil:
		return Answer{Err: o.refusal}, nil
	case o.payload == nil && r.result.isZero():
		return Answer{}, nil
	case r.result.Task != nil && r.result.Task.State == TaskWorking:
		if o.result.Task != nil {
			return Answer{Async: true}, nil
		}
		r.result.Task = nil // the artifacts or the payload after it complete the task
	}
	payload, err := r.result.payload(r.intent, o.payload)
	if err != nil {
		return Answer{}, err
	}
	return Answer{Payload: &payload}, nil
}

// parseAnswer parses the whole output of a handler. An answer has only the members of an [object], so that a handler
// cannot set other fields of the message.
func parseAnswer(output []byte, intent wire.Intent) (Answer, error) {
	r := answerReader{intent: intent}
	if _, err := r.Write(output); err != nil {
		return Answer{}, err
	}
	return r.finish()
}

// object is one JSON object of a hook's output. If hold or refusal is set, nothing else is set.
type object struct {
	payload *wire.Value
	result  Result
	hold    string
	refusal *wire.Error
}

// isFinal reports whether the object must be the last one in a stream.
func (o object) isFinal() bool {
	return o.payload != nil || o.result.Message || o.hold != "" || o.refusal != nil || o.result.Task != nil && o.result.Task.State != TaskWorking
}

const membersRule = "the answer must have only payload, task, artifacts and message, or hold alone, or error alone"

func parseObject(text []byte) (o object, err error) {
	v, err := wire.ParseObject(text)
	if err != nil {
		return o, fmt.Errorf("the answer is not one strict JSON object: %w", err)
	}
	for _, m := range v.Members() {
		alone := m.Key == "hold" || m.Key == "error"
		if alone && v.Len() > 1 {
			return o, errors.New(membersRule)
		}
		if (alone || m.Key == "payload") && m.Value.Kind() != wire.Object {
			return o, fmt.Errorf("%s must be an object", m.Key)
		}
		switch m.Key {
		case "payload":
			o.payload = &m.Value
		case "hold":
			if o.hold = wire.OneLine(m.Value.GetStr("reason"), 500); o.hold == "" {
				o.hold = "the agent asks for a decision"
			}
		case "error":
			if o.refusal, err = readRefusal(m.Value); err != nil {
				return o, err
			}
		case "task", "artifacts":
		case "message":
			if m.Value.Kind() != wire.True || v.Len() == 1 {
				return o, errors.New("message must be true, beside what the message says")
			}
			o.result.Message = true
		default:
			return o, errors.New(membersRule)
		}
	}
	message := o.result.Message
	if o.result, err = ReadResult(v); err != nil {
		return o, err
	}
	if o.result.Message = message; message && o.result.Task != nil {
		return o, errors.New("an answer with message has no task")
	}
	if o.payload != nil && o.result.Task != nil && o.result.Task.State == TaskWorking {
		return o, errors.New("a payload ends the answer, so task.state cannot be working")
	}
	return o, nil
}

func readRefusal(v wire.Value) (*wire.Error, error) {
	switch wire.Code(v.GetStr("code")) {
	case wire.IntentNotSupported:
		return wire.ErrIntent, nil
	case wire.OwnerRejected:
		return wire.ErrOwnerRejected, nil
	}
	return nil, errors.New("error.code must be INTENT_NOT_SUPPORTED or OWNER_REJECTED")
}

var errTooLarge = fmt.Errorf("the answer does not fit into a message of %d bytes", conversations.MaxPayload)

// payload returns the payload of the reply that carries the result. own is the payload that the hook gave. If own is
// nil, the text of the result takes its place, because a peer may not know the members task and artifacts.
func (r Result) payload(intent wire.Intent, own *wire.Value) (wire.Value, error) {
	if own == nil {
		own = new(TextPayload(intent, r.summary()))
	}
	payload := r.AddTo(*own)
	if len(payload.JSON()) > conversations.MaxPayload {
		return wire.Value{}, errTooLarge
	}
	return conversations.CheckOwn(intent, payload)
}

// summary returns the result as a text: the text of the task, else the texts of the artifacts, else the state with the
// number of artifacts.
func (r Result) summary() string {
	const limit = 16 << 10 // the texts are in the artifacts as well
	if r.Task != nil && r.Task.Text != "" {
		return r.Task.Text
	}
	var texts []string
	size := 0
	for _, a := range r.Artifacts {
		for _, p := range a.Parts {
			if p.Text != nil && size+len(*p.Text) <= limit {
				texts = append(texts, *p.Text)
				size += len(*p.Text)
			}
		}
	}
	state := TaskCompleted
	if r.Task != nil {
		state = r.Task.State
	}
	name := strings.ReplaceAll(string(state), "_", " ")
	switch n := len(r.Artifacts); {
	case size > 0:
		return strings.Join(texts, "\n")
	case n == 1:
		return name + ", 1 artifact"
	case n > 0:
		return fmt.Sprintf("%s, %d artifacts", name, n)
	}
	return name
}

// TextPayload returns the payload of a reply that contains only text.
func TextPayload(intent wire.Intent, text string) wire.Value {
	if intent == wire.Deliver {
		return wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text))))
	}
	return wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", text))
}
