package hook

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Result is what an agent reports about its work in addition to the message: the state of the task, and artifacts.
// Between agents of the mesh, a result travels in the members "task" and "artifacts" of a reply's payload. The zero
// value is a completed task without artifacts.
type Result struct {
	Task      *Task // nil: completed
	Artifacts []Artifact
	Message   bool // the answer is a message, not the result of a task: over A2A, a caller that waits gets no task
}

// Task is the state of the work that a message asked for.
type Task struct {
	State TaskState
	Text  string // for people; at most 16 KiB
}

// TaskState is a state of a [Task], as docs/hooks.md lists them.
type TaskState string

const (
	TaskWorking       TaskState = "working"        // the reply comes later
	TaskInputRequired TaskState = "input_required" // the agent needs an answer from the sender first
	TaskCompleted     TaskState = "completed"
	TaskFailed        TaskState = "failed"
	TaskRejected      TaskState = "rejected" // the agent does not do this
	TaskCanceled      TaskState = "canceled"
)

func (s TaskState) isKnown() bool {
	return slices.Contains([]TaskState{TaskWorking, TaskInputRequired, TaskCompleted, TaskFailed, TaskRejected, TaskCanceled}, s)
}

// Artifact is something that an agent made.
type Artifact struct {
	ID, Name, Description string
	// In a stream of results, Append adds Parts to the artifact with the same ID, instead of replacing it. Last reports
	// that nothing more will be added.
	Append, Last bool
	Parts        []Part
}

// Part is a piece of an artifact. Exactly one of Text, Raw, URL and Data is set.
type Part struct {
	Text      *string
	Raw       []byte // the bytes of a file; not nil if the part is a file, even an empty one
	URL       string // absolute, http or https
	Data      *wire.Value
	MediaType string // of Text, Raw or what URL points to; "" if unknown
	Filename  string // without a folder
}

// The bounds of a result. Its total size is limited by the bounds on a hook's output (AM-72) and on a message.
const (
	maxTaskText  = 16 << 10 // bytes
	maxArtifacts = 64
	maxParts     = 256     // of one artifact
	maxLabel     = 256     // bytes of an id, a name, a media type or a file name
	maxAbout     = 4 << 10 // bytes of a description
	maxPartURL   = 2 << 10
	maxDataDepth = 16
)

// ReadResult returns the result in a payload, or the zero value. The error describes members that are not valid or
// exceed the bounds; a reader then treats the payload as one without a result. All texts of a peer's result are
// untrusted.
func ReadResult(payload wire.Value) (Result, error) {
	var r Result
	var err error
	if v, ok := payload.Get("task"); ok {
		if r.Task, err = readTask(v); err != nil {
			return Result{}, err
		}
		message, _ := v.Get("message")
		r.Message, _ = message.Boolean()
	}
	if v, ok := payload.Get("artifacts"); ok {
		if r.Artifacts, err = readArtifacts(v); err != nil {
			return Result{}, err
		}
	}
	return r, nil
}

// AddTo returns payload with the result in its members "task" and "artifacts".
func (r Result) AddTo(payload wire.Value) wire.Value {
	if r.Message {
		payload = payload.With("task", wire.Obj(wire.TextField("state", string(TaskCompleted)), wire.Field("message", wire.Bool(true))))
	} else if r.Task != nil {
		task := wire.Obj(wire.TextField("state", string(r.Task.State)))
		payload = payload.With("task", task.WithOptional("text", r.Task.Text))
	}
	if len(r.Artifacts) > 0 {
		var list []wire.Value
		for _, a := range r.Artifacts {
			list = append(list, a.tree())
		}
		payload = payload.With("artifacts", wire.Arr(list...))
	}
	return payload
}

func (r Result) isZero() bool { return r.Task == nil && len(r.Artifacts) == 0 && !r.Message }

// merge adds a later result of the same stream to r.
func (r *Result) merge(later Result) error {
	if later.Task != nil {
		r.Task = later.Task
	}
	r.Message = later.Message
	for _, a := range later.Artifacts {
		if err := r.addArtifact(a); err != nil {
			return err
		}
	}
	return nil
}

// addArtifact adds an artifact to r, unless r has one with the same id, which it then replaces or extends.
func (r *Result) addArtifact(a Artifact) error {
	extend := a.Append
	a.Append, a.Last = false, false // they have a meaning only in a stream
	for i := range r.Artifacts {
		old := &r.Artifacts[i]
		if a.ID == "" || old.ID != a.ID {
			continue
		}
		if !extend {
			*old = a
			return nil
		}
		for _, p := range a.Parts {
			old.Parts = appendPart(old.Parts, p)
		}
		if len(old.Parts) > maxParts {
			return fmt.Errorf("artifact %q has more than %d parts", a.ID, maxParts)
		}
		return nil
	}
	if len(r.Artifacts) == maxArtifacts {
		return fmt.Errorf("there are more than %d artifacts", maxArtifacts)
	}
	r.Artifacts = append(r.Artifacts, a)
	return nil
}

// appendPart adds a part to a list. A text continues the text before it, so that an artifact streamed word by word ends
// as one part.
func appendPart(parts []Part, p Part) []Part {
	if n := len(parts); n > 0 && p.Text != nil && p.Filename == "" {
		if last := parts[n-1]; last.Text != nil && last.Filename == "" && last.MediaType == p.MediaType {
			last.Text = new(*last.Text + *p.Text)
			return append(parts[:n-1:n-1], last)
		}
	}
	return append(parts, p)
}

func readTask(v wire.Value) (*Task, error) {
	if v.Kind() != wire.Object {
		return nil, errors.New("task must be an object")
	}
	f := memberReader{v: v, what: "task"}
	t := &Task{State: TaskState(f.text("state", maxLabel)), Text: f.text("text", maxTaskText)}
	if f.err == nil && !t.State.isKnown() {
		f.err = errors.New("task.state must be working, input_required, completed, failed, rejected or canceled")
	}
	return t, f.err
}

func readArtifacts(v wire.Value) ([]Artifact, error) {
	if v.Kind() != wire.Array {
		return nil, errors.New("artifacts must be an array")
	}
	if v.Len() > maxArtifacts {
		return nil, fmt.Errorf("there are more than %d artifacts", maxArtifacts)
	}
	var list []Artifact
	for v := range v.Elems() {
		a, err := readArtifact(v)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

func readArtifact(v wire.Value) (Artifact, error) {
	f := memberReader{v: v, what: "an artifact"}
	a := Artifact{
		ID: f.text("id", maxLabel), Name: f.text("name", maxLabel), Description: f.text("description", maxAbout),
		Append: f.boolean("append"), Last: f.boolean("last"),
	}
	parts, _ := v.Get("parts")
	switch {
	case f.err != nil:
		return a, f.err
	case parts.Kind() != wire.Array || parts.Len() == 0:
		return a, errors.New("an artifact needs at least one part")
	case parts.Len() > maxParts:
		return a, fmt.Errorf("an artifact has more than %d parts", maxParts)
	case a.Append && a.ID == "":
		return a, errors.New("an artifact with append needs an id")
	}
	for v := range parts.Elems() {
		p, err := readPart(v)
		if err != nil {
			return a, err
		}
		a.Parts = append(a.Parts, p)
	}
	return a, nil
}

func readPart(v wire.Value) (p Part, err error) {
	f := memberReader{v: v, what: "a part"}
	p.MediaType, p.Filename = f.text("media_type", maxLabel), f.text("filename", maxLabel)
	if f.err == nil && (p.Filename == ".." || strings.ContainsAny(p.Filename, "/\\\x00")) {
		f.err = errors.New("a filename must not name a folder")
	}
	kinds := 0
	for _, key := range []string{"text", "raw", "url", "data"} {
		if _, ok := v.Get(key); !ok || f.err != nil {
			continue
		}
		kinds++
		switch key {
		case "text":
			p.Text = new(f.text(key, wire.MaxMessage))
		case "raw":
			if p.Raw, err = base64.StdEncoding.DecodeString(f.text(key, wire.MaxMessage)); err != nil {
				return p, errors.New("raw must be base64")
			}
		case "url":
			p.URL = f.text(key, maxPartURL)
			if u, err := url.Parse(p.URL); f.err == nil && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http") {
				f.err = errors.New("url must be an http or https URL")
			}
		case "data":
			data, _ := v.Get(key)
			if _, err := wire.ParseLimits(data.JSON(), maxDataDepth, wire.MaxValues); err != nil {
				return p, fmt.Errorf("data must have at most %d levels: %w", maxDataDepth, err)
			}
			p.Data = &data
		}
	}
	if f.err == nil && kinds != 1 {
		f.err = errors.New("a part must have exactly one of text, raw, url and data")
	}
	return p, f.err
}

func (a Artifact) tree() wire.Value {
	v := wire.Obj().WithOptional("id", a.ID).WithOptional("name", a.Name).WithOptional("description", a.Description)
	if a.Append {
		v = v.With("append", wire.Bool(true))
	}
	if a.Last {
		v = v.With("last", wire.Bool(true))
	}
	var parts []wire.Value
	for _, p := range a.Parts {
		parts = append(parts, p.tree())
	}
	return v.With("parts", wire.Arr(parts...))
}

func (p Part) tree() wire.Value {
	var content wire.Member
	switch {
	case p.Text != nil:
		content = wire.TextField("text", *p.Text)
	case p.Data != nil:
		content = wire.Field("data", *p.Data)
	case p.URL != "":
		content = wire.TextField("url", p.URL)
	default:
		content = wire.TextField("raw", base64.StdEncoding.EncodeToString(p.Raw))
	}
	return wire.Obj(content).WithOptional("media_type", p.MediaType).WithOptional("filename", p.Filename)
}

// memberReader reads optional members, and keeps the first error.
type memberReader struct {
	v    wire.Value
	what string // names the object in errors
	err  error
}

func (f *memberReader) text(key string, limit int) string {
	v, ok := f.v.Get(key)
	if !ok {
		return ""
	}
	text, isText := v.Str()
	if f.err == nil && (!isText || len(text) > limit) {
		f.err = fmt.Errorf("%s of %s must be a text of at most %d bytes", key, f.what, limit)
	}
	return text
}

func (f *memberReader) boolean(key string) bool {
	v, ok := f.v.Get(key)
	b, isBool := v.Boolean()
	if ok && !isBool && f.err == nil {
		f.err = fmt.Errorf("%s of %s must be true or false", key, f.what)
	}
	return b
}
