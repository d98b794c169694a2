package message

import (
	"encoding/base64"
	"mime"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Extension is the URI of our extension. On a card it names the agent of the mesh behind the A2A agent. In the metadata
// of a message or artifact it names the intent of the one data part, which then is a payload of the mesh.
const Extension = "urn:agentmesh:a2a:v1"

// Message is a checked message of a client.
type Message struct {
	ID        string
	ContextID string // "" if the client names none
	TaskID    string // "" for a new task
	Parts     []wire.Value
	Tree      wire.Value // as received
}

// ReadMessage checks the member "message" of the parameters of SendMessage: ids of at most 128 bytes, the role of
// a user, and 1 to 64 parts with exactly one content each (A2A-4).
func ReadMessage(params wire.Value) (Message, *Error) {
	v, _ := params.Get("message")
	m := Message{ID: v.GetStr("messageId"), ContextID: v.GetStr("contextId"), TaskID: v.GetStr("taskId"), Tree: v}
	switch {
	case v.Kind() != wire.Object:
		return m, ErrParams.At("message must be an object")
	case !isID(m.ID):
		return m, ErrParams.At("message.messageId must have 1 to 128 bytes, without spaces")
	case v.GetStr("role") != "ROLE_USER":
		return m, ErrParams.At("message.role must be ROLE_USER")
	case m.ContextID != "" && !isID(m.ContextID):
		return m, ErrParams.At("message.contextId must have at most 128 bytes, without spaces")
	case m.TaskID != "" && !isID(m.TaskID):
		return m, ErrTaskNotFound
	}
	parts, _ := v.Get("parts")
	if parts.Kind() != wire.Array || parts.Len() == 0 || parts.Len() > maxParts {
		return m, ErrParams.At("message.parts must have 1 to 64 entries")
	}
	for part := range parts.Elems() {
		if !isPart(part, "mediaType") {
			return m, ErrParams.At("a part needs exactly one valid text, raw, url or data, and may have a mediaType and a filename of at most 256 bytes")
		}
		if kind := part.GetStr("mediaType"); kind != "" && !isInput(kind) {
			return m, ErrContentType.At("see defaultInputModes in the agent card")
		}
		m.Parts = append(m.Parts, part)
	}
	if meta, ok := v.Get("metadata"); ok && !meta.IsNull() && meta.Kind() != wire.Object {
		return m, ErrParams.At("message.metadata must be an object")
	}
	return m, nil
}

// inputModes are the patterns of the media types that a part may have. Our card lists them.
var inputModes = []string{
	"text/plain", "application/json", "text/*", "image/*", "audio/*", "video/*", "message/rfc822", "application/pdf", "application/rtf", "application/xml",
	"application/yaml", "application/zip", "application/gzip", "application/octet-stream", "application/msword", "application/vnd.*",
	"application/*+json", "application/*+xml", "application/*+zip",
}

// isInput reports whether our card lists the media type of a part.
func isInput(mediaType string) bool {
	kind, _, err := mime.ParseMediaType(mediaType)
	return err == nil && slices.ContainsFunc(inputModes, func(mode string) bool {
		ok, _ := path.Match(mode, kind)
		return ok
	})
}

// isID reports whether s may be an id: 1 to 128 bytes, without spaces, control characters or characters above U+FFFF.
func isID(s string) bool {
	return s != "" && len(s) <= maxID && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r > 0xffff })
}

// contents are the members that hold the content of a part. A data content may be any value, even null.
var contents = []string{"text", "raw", "url", "data"}

// isPart reports whether v is a part with exactly one content. mediaType is the name of the member for the media type:
// "mediaType" in A2A, "media_type" in payloads of the mesh.
func isPart(v wire.Value, mediaType string) bool {
	if v.Kind() != wire.Object {
		return false
	}
	n := 0
	for _, key := range contents {
		content, ok := v.Get(key)
		if !ok || content.IsNull() && key != "data" {
			continue
		}
		text, isText := content.Str()
		switch {
		case key == "data":
		case !isText:
			return false
		case key == "raw" && !isBase64(text):
			return false
		case key == "url":
			if u, err := url.Parse(text); err != nil || text == "" || u.Scheme == "" {
				return false
			}
		}
		n++
	}
	for _, key := range []string{mediaType, "filename"} {
		if text, ok := v.Get(key); ok && !text.IsNull() && (text.Kind() != wire.String || len(v.GetStr(key)) > 256) {
			return false
		}
	}
	return n == 1
}

// isBase64 reports whether s is base64 in one of the forms that ProtoJSON accepts.
func isBase64(s string) bool {
	s = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(s), "=")
	_, err := base64.RawStdEncoding.DecodeString(s)
	return err == nil && !strings.ContainsAny(s, "\r\n")
}

// toMesh returns a part in the form that payloads of the mesh have.
func toMesh(part wire.Value) wire.Value { return renamePart(part, "mediaType", "media_type") }

func fromMesh(part wire.Value) wire.Value { return renamePart(part, "media_type", "mediaType") }

// renamePart returns a part without empty members, with the member oldName renamed to newName.
func renamePart(part wire.Value, oldName, newName string) wire.Value {
	var out []wire.Member
	for _, key := range append(slices.Clone(contents), "filename", oldName) {
		v, ok := part.Get(key)
		text, isText := v.Str()
		mayBeEmpty := key == "text" || key == "data"
		if !ok || v.IsNull() && key != "data" || isText && text == "" && !mayBeEmpty {
			continue
		}
		if key == oldName {
			key = newName
		}
		out = append(out, wire.Field(key, v))
	}
	return wire.Obj(out...)
}

func textOf(parts []wire.Value) string {
	var lines []string
	for _, part := range parts {
		if text, ok := part.Get("text"); ok && text.Kind() == wire.String {
			lines = append(lines, part.GetStr("text"))
		}
	}
	return strings.Join(lines, "\n")
}

// readNative returns the intent and the payload of a message or artifact of our extension: metadata names the intent,
// and the only part is the payload. It returns false for any other message or artifact.
func readNative(metadata wire.Value, parts []wire.Value) (wire.Intent, wire.Value, bool) {
	ext, _ := metadata.Get(Extension)
	intent := wire.Intent(ext.GetStr("intent"))
	if !intent.Valid() || len(parts) != 1 {
		return "", wire.Value{}, false
	}
	payload, _ := parts[0].Get("data")
	return intent, payload, payload.Kind() == wire.Object
}

// Payload maps the message to an intent and a payload. A message with our extension carries both. Any other message
// becomes a mesh.message that asks for a reply. Its body is the text of the text parts. If any part is not text, the
// member "parts" holds all parts, including the text parts.
func (m Message) Payload() (wire.Intent, wire.Value) {
	metadata, _ := m.Tree.Get("metadata")
	if intent, payload, ok := readNative(metadata, m.Parts); ok {
		return intent, payload
	}
	payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(
		wire.TextField("body", textOf(m.Parts)), wire.Field("reply_requested", wire.Bool(true)),
	)))
	if slices.ContainsFunc(m.Parts, func(part wire.Value) bool { _, isText := part.Get("text"); return !isText }) {
		var parts []wire.Value
		for _, part := range m.Parts {
			parts = append(parts, toMesh(part))
		}
		payload = payload.With("parts", wire.Arr(parts...))
	}
	return wire.Deliver, payload
}

// NewMessage returns the message with which we send a payload to another agent. A mesh.message with only a body and
// parts becomes these parts or, if it has none, a text part with the body; any other payload becomes a data part with
// our extension, which an agent of the mesh reads back without loss.
func NewMessage(id, contextID, taskID string, intent wire.Intent, payload wire.Value) wire.Value {
	m := []wire.Member{wire.TextField("messageId", id), wire.TextField("contextId", contextID)}
	if taskID != "" {
		m = append(m, wire.TextField("taskId", taskID))
	}
	payload = withoutNodeMetadata(payload)
	parts, metadata := plainParts(intent, payload), wire.Value{}
	if parts == nil {
		parts = []wire.Value{wire.Obj(wire.Field("data", payload), wire.TextField("mediaType", "application/json"))}
		metadata = wire.Obj(wire.Field(Extension, wire.Obj(wire.TextField("intent", string(intent)))))
	}
	m = append(m, wire.TextField("role", "ROLE_USER"), wire.Field("parts", wire.Arr(parts...)))
	if !metadata.IsNull() {
		m = append(m, wire.Field("metadata", metadata), wire.Field("extensions", wire.Texts([]string{Extension})))
	}
	return wire.Obj(m...)
}

// plainParts returns the parts of a mesh.message that consists of a body and parts, or nil.
func plainParts(intent wire.Intent, payload wire.Value) []wire.Value {
	m, _ := payload.Get("message")
	body, _ := m.Get("body")
	if intent != wire.Deliver || payload.GetStr("action") != "deliver" || body.Kind() != wire.String {
		return nil
	}
	if m.Without("body", "reply_requested").Len() > 0 || payload.Without("action", "message", "parts").Len() > 0 {
		return nil
	}
	list, ok := payload.Get("parts")
	if !ok {
		return []wire.Value{wire.Obj(wire.Field("text", body))}
	}
	var parts []wire.Value
	for part := range list.Elems() {
		if !isPart(part, "media_type") {
			return nil
		}
		parts = append(parts, fromMesh(part))
	}
	if len(parts) == 0 || len(parts) > maxParts || textOf(parts) != m.GetStr("body") { // else the body would get lost
		return nil
	}
	return parts
}

// withoutNodeMetadata returns a payload without the members of metadata that only this node reads.
func withoutNodeMetadata(payload wire.Value) wire.Value {
	meta, ok := payload.Get("metadata")
	if !ok {
		return payload
	}
	if meta = meta.Without("bridge", "in_reply_to", "resend_of"); meta.Len() == 0 {
		return payload.Without("metadata")
	}
	return payload.With("metadata", meta)
}
