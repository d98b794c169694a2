package message

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
)

// Task is a task as a client sees it.
type Task struct {
	ID, Context string
	State       a2a.TaskState
	At          time.Time  // of the state
	Status      wire.Value // message of the status; a null value for none
	Artifacts   []wire.Value
	History     []wire.Value
}

// Value returns the task in the form that A2A sends.
func (t Task) Value() wire.Value {
	status := wire.Obj(wire.TextField("state", string(t.State)), wire.TextField("timestamp", t.At.UTC().Format(timeLayout)))
	if !t.Status.IsNull() {
		status = status.With("message", t.Status)
	}
	v := []wire.Member{wire.TextField("id", t.ID), wire.TextField("contextId", t.Context), wire.Field("status", status)}
	if len(t.Artifacts) > 0 {
		v = append(v, wire.Field("artifacts", wire.Arr(t.Artifacts...)))
	}
	if len(t.History) > 0 {
		v = append(v, wire.Field("history", wire.Arr(t.History...)))
	}
	return wire.Obj(v...)
}

// timeLayout is RFC 3339 in UTC with milliseconds (A2A-3).
const timeLayout = "2006-01-02T15:04:05.000Z"

// TaskResult wraps a task as an event of a stream or as the result of SendMessage.
func (t Task) TaskResult() wire.Value { return wire.Obj(wire.Field("task", t.Value())) }

// DirectMessage returns the answer of an agent that gave no task, as the result of SendMessage. v is the task in the form
// of A2A; its artifacts, or else its status, have the parts of the message.
func DirectMessage(v wire.Value) wire.Value {
	status, _ := v.Get("status")
	said, _ := status.Get("message")
	id, parts := said.GetStr("messageId"), partsOf(said)
	if artifacts, ok := v.Get("artifacts"); ok {
		id, parts = artifacts.At(0).GetStr("artifactId"), partsOfAll(slices.Collect(artifacts.Elems()))
	}
	return wire.Obj(wire.Field("message", wire.Obj(
		wire.TextField("messageId", id), wire.TextField("contextId", v.GetStr("contextId")), wire.TextField("role", "ROLE_AGENT"),
		wire.Field("parts", wire.Arr(parts...)),
	)))
}

// ArtifactUpdate returns the event that reports an artifact. If join is true, its parts follow those of an earlier
// event with the same artifact id. If last is true, no more parts follow.
func (t Task) ArtifactUpdate(artifact wire.Value, join, last bool) wire.Value {
	v := wire.Obj(wire.TextField("taskId", t.ID), wire.TextField("contextId", t.Context), wire.Field("artifact", artifact))
	if join {
		v = v.With("append", wire.Bool(true))
	}
	if last {
		v = v.With("lastChunk", wire.Bool(true))
	}
	return wire.Obj(wire.Field("artifactUpdate", v))
}

// AgentMessage returns a message of our agent in the task.
func (t Task) AgentMessage(id, text string) wire.Value {
	return wire.Obj(
		wire.TextField("messageId", id), wire.TextField("contextId", t.Context), wire.TextField("taskId", t.ID), wire.TextField("role", "ROLE_AGENT"),
		wire.Field("parts", wire.Arr(wire.Obj(wire.TextField("text", text)))),
	)
}

// states maps the states in the results of hooks (programs behind the node) to those of A2A.
var states = map[string]a2a.TaskState{
	"working": a2a.TaskStateWorking, "input_required": a2a.TaskStateInputRequired, "completed": a2a.TaskStateCompleted,
	"failed": a2a.TaskStateFailed, "rejected": a2a.TaskStateRejected, "canceled": a2a.TaskStateCanceled,
}

// StateName returns the hook-result name of an A2A state. TaskStateAuthRequired becomes "input_required", and a state
// without a name becomes "working".
func StateName(s a2a.TaskState) string {
	for name, state := range states {
		if state == s {
			return name
		}
	}
	if s == a2a.TaskStateAuthRequired {
		return "input_required"
	}
	return "working"
}

// Reply is what a payload of ours says about a task.
type Reply struct {
	State     a2a.TaskState
	Receipt   bool         // it says only that the message arrived
	Direct    bool         // the agent answered with a message, without a task
	Text      string       // what the agent says about the state; "" for nothing
	Artifacts []wire.Value // the results
}

// The texts with which the node itself explains a state. They are fixed, so that they reveal nothing about the owner.
const (
	TextWaits    = "waits for the owner of this agent"
	TextWorking  = "the agent is working on it"
	TextLater    = "the message was accepted, and the answer comes later"
	TextRejected = "the owner of this agent declined"
	TextFailed   = "the agent could not answer"
	TextExpired  = "nobody answered in time"
	TextCanceled = "canceled"
)

// ReadReply reads what a payload of our side says about the task that it answers. A result without artifacts of its own
// becomes an artifact with the given id; in a state without a result, the body explains the state. If withPayload is
// true, another artifact holds the payload, for a client that supports our extension.
func ReadReply(intent wire.Intent, payload wire.Value, id string, withPayload bool) Reply {
	task, _ := payload.Get("task")
	r := Reply{State: a2a.TaskStateCompleted, Text: task.GetStr("text")}
	if state, ok := states[task.GetStr("state")]; ok {
		r.State = state
	}
	direct, _ := task.Get("message")
	r.Direct = direct.Kind() == wire.True && r.State == a2a.TaskStateCompleted
	switch payload.GetStr("action") {
	case wire.ActionReceived:
		return Reply{State: a2a.TaskStateSubmitted, Receipt: true}
	case wire.ActionPending:
		text := TextWaits
		switch reason := payload.GetStr("reason"); { // the node gives one of a few texts as the reason
		case strings.Contains(reason, "comes later"):
			text = TextLater
		case strings.Contains(reason, "could not answer"):
			text = TextFailed
		}
		return Reply{State: a2a.TaskStateWorking, Text: text}
	case wire.ActionClose:
		return readClose(payload)
	}
	list, _ := payload.Get("artifacts")
	for artifact := range list.Elems() {
		if v, ok := ReadArtifact(artifact); ok {
			r.Artifacts = append(r.Artifacts, v)
		}
	}
	body := bodyOf(payload)
	if said := textOf(partsOfAll(r.Artifacts)); said == body {
		body = "" // made from the artifacts, for a peer that does not know them
	}
	hasResult := r.State == a2a.TaskStateCompleted || r.State == a2a.TaskStateWorking
	rest := withoutNodeMetadata(payload).Without("action", "task", "artifacts", "metadata")
	switch {
	case len(r.Artifacts) > 0 || !hasResult:
		r.Text = cmp.Or(r.Text, body)
	case body != "" && rest.Len() == 1: // the payload has only a body
		r.Artifacts = append(r.Artifacts, artifactOf(id, wire.Obj(wire.TextField("text", body))))
	case rest.Len() > 0: // its other members become a data part
		data := wire.Obj(wire.Field("data", withoutNodeMetadata(payload).Without("task", "artifacts")), wire.TextField("mediaType", "application/json"))
		parts := []wire.Value{data}
		if body != "" {
			parts = append([]wire.Value{wire.Obj(wire.TextField("text", body))}, parts...)
		}
		r.Artifacts = append(r.Artifacts, artifactOf(id, parts...))
	}
	if withPayload {
		data := wire.Obj(wire.Field("data", withoutNodeMetadata(payload)), wire.TextField("mediaType", "application/json"))
		r.Artifacts = append(r.Artifacts, artifactOf(id+"-mesh", data).
			With("metadata", wire.Obj(wire.Field(Extension, wire.Obj(wire.TextField("intent", string(intent)))))).
			With("extensions", wire.Texts([]string{Extension})))
	}
	return r
}

// readClose returns what the close of a conversation says about the tasks in it.
func readClose(payload wire.Value) Reply {
	switch {
	case payload.GetStr("status") == "completed":
		return Reply{State: a2a.TaskStateCompleted}
	case payload.GetStr("reason") == string(wire.OwnerRejected):
		return Reply{State: a2a.TaskStateRejected, Text: TextRejected}
	case payload.GetStr("reason") == string(wire.IntentNotSupported):
		return Reply{State: a2a.TaskStateRejected, Text: "this agent does not support the intent"}
	}
	return Reply{State: a2a.TaskStateCanceled, Text: TextCanceled}
}

// bodyOf returns the text of an answer, in whichever member its intent puts it.
func bodyOf(payload wire.Value) string {
	m, _ := payload.Get("message")
	if text, ok := m.Str(); ok {
		return text
	}
	for _, text := range []string{m.GetStr("body"), payload.GetStr("answer"), payload.GetStr("response"), payload.GetStr("text")} {
		if text != "" {
			return text
		}
	}
	return ""
}

func artifactOf(id string, parts ...wire.Value) wire.Value {
	return wire.Obj(wire.TextField("artifactId", id), wire.Field("parts", wire.Arr(parts...)))
}

// ReadArtifact returns an artifact of a payload in the form of A2A. ok is false if the artifact has no valid part.
func ReadArtifact(v wire.Value) (artifact wire.Value, ok bool) {
	list, _ := v.Get("parts")
	var parts []wire.Value
	for part := range list.Elems() {
		if isPart(part, "media_type") && len(parts) < maxArtifactParts {
			parts = append(parts, fromMesh(part))
		}
	}
	artifact = artifactOf(cmp.Or(v.GetStr("id"), "artifact"), parts...)
	for _, key := range []string{"name", "description"} {
		artifact = artifact.WithOptional(key, v.GetStr(key))
	}
	return artifact, len(parts) > 0
}

// Remote is a task, or a direct message, of another agent.
type Remote struct {
	TaskID, ContextID string
	State             a2a.TaskState
	StatusHash        [32]byte     // hash of the status: equal if the agent says nothing new
	parts             []wire.Value // of the status message, or of the direct message
	artifacts         []wire.Value
	metadata          wire.Value // of a direct message
}

// A task has the same bounds as the result of a hook.
const (
	maxArtifacts     = 64
	maxArtifactParts = 256
)

// ReadResult reads the result of SendMessage, {"task":…} or {"message":…}, or a bare task as GetTask returns it.
func ReadResult(v wire.Value) (Remote, *Error) {
	if m, ok := v.Get("message"); ok && m.Kind() == wire.Object {
		r := Remote{ContextID: m.GetStr("contextId"), State: a2a.TaskStateCompleted, parts: partsOf(m)}
		r.metadata, _ = m.Get("metadata")
		if len(r.parts) == 0 || len(r.ContextID) > maxID {
			return r, ErrAgentResponse.At("a message without parts, or with a context id that is too long")
		}
		return r, nil
	}
	if task, ok := v.Get("task"); ok {
		v = task
	}
	status, _ := v.Get("status")
	r := Remote{TaskID: v.GetStr("id"), ContextID: v.GetStr("contextId"), State: a2a.TaskState(status.GetStr("state"))}
	if !isID(r.TaskID) || len(r.ContextID) > maxID || r.State == "" {
		return r, ErrAgentResponse.At("a task without a state, or without a valid id")
	}
	said, _ := status.Get("message")
	r.parts, r.StatusHash = partsOf(said), signing.Digest(status)
	list, _ := v.Get("artifacts")
	for artifact := range list.Elems() {
		if len(r.artifacts) < maxArtifacts && artifact.Kind() == wire.Object {
			r.artifacts = append(r.artifacts, artifact)
		}
	}
	return r, nil
}

func partsOf(v wire.Value) []wire.Value {
	list, _ := v.Get("parts")
	var out []wire.Value
	for part := range list.Elems() {
		if isPart(part, "mediaType") && len(out) < maxArtifactParts {
			out = append(out, part)
		}
	}
	return out
}

func partsOfAll(artifacts []wire.Value) (parts []wire.Value) {
	for _, a := range artifacts {
		parts = append(parts, partsOf(a)...)
	}
	return parts
}

// IsWaiting reports whether the task goes on by itself, so that the client must ask again.
func (r Remote) IsWaiting() bool {
	return !r.State.Terminal() && !IsInterrupted(r.State)
}

// IsInterrupted reports whether a task with this state asks the client: for a message, or for authorization, which the
// agent may also get from somebody else (A2A-9).
func IsInterrupted(s a2a.TaskState) bool {
	return s == a2a.TaskStateInputRequired || s == a2a.TaskStateAuthRequired
}

// Payload returns the intent and the payload for an answer. The answer of an agent of the mesh carries both. Any other
// answer becomes a mesh.message, or, if the intent of our message is mesh.request_info, the answer to that question.
func (r Remote) Payload(intent wire.Intent) (wire.Intent, wire.Value) {
	if intent, payload, ok := readNative(r.metadata, r.parts); ok {
		return intent, payload
	}
	var artifacts, results []wire.Value
	for _, a := range r.artifacts {
		parts := partsOf(a)
		metadata, _ := a.Get("metadata")
		if intent, payload, ok := readNative(metadata, parts); ok {
			return intent, payload
		}
		if len(parts) == 0 {
			continue
		}
		results = append(results, parts...)
		artifacts = append(artifacts, toMeshArtifact(a, parts))
	}
	said := textOf(r.parts)
	body := cmp.Or(textOf(results), said)
	task := wire.Obj(wire.TextField("state", StateName(r.State))).WithOptional("text", said)
	payload := wire.Obj(wire.TextField("action", "answer"), wire.TextField("answer", body))
	if intent != wire.RequestInfo {
		intent, payload = wire.Deliver, wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", body))))
	}
	if r.TaskID != "" {
		payload = payload.With("task", task)
	}
	if len(artifacts) > 0 {
		payload = payload.With("artifacts", wire.Arr(artifacts...))
	}
	return intent, payload
}

func toMeshArtifact(v wire.Value, parts []wire.Value) wire.Value {
	var out []wire.Value
	for _, part := range parts {
		out = append(out, toMesh(part))
	}
	artifact := wire.Obj()
	for _, key := range []struct{ from, to string }{{"artifactId", "id"}, {"name", "name"}, {"description", "description"}} {
		if text := v.GetStr(key.from); text != "" && len(text) <= 1024 {
			artifact = artifact.With(key.to, wire.Text(text))
		}
	}
	return artifact.With("parts", wire.Arr(out...))
}
