package message

import (
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// form is how the JSON of a version and a binding looks. Everything behind the door has form10; the table of this file
// maps the two forms of A2A 0.3 to it, in both directions (A2A-15).
type form int

const (
	form10   form = iota // A2A 1.0
	formRPC              // A2A 0.3 over JSON-RPC: members "kind", roles and states in lower case
	formREST             // A2A 0.3 over HTTP+JSON: the JSON of its proto
)

// row is a member of an object that differs between the forms, or that has objects below it which do.
type row struct {
	of    string    // type of the object
	names [3]string // of the member, by form. A dot separates the name of an inner object
	is    string    // type of the value, or of the elements of a list; "" for a value that stays
}

// table maps the forms. What it does not name stays as it is.
var table = []row{
	{"send", [3]string{"message", "message", "message"}, "message"},
	{"send", [3]string{"configuration", "configuration", "configuration"}, "configuration"},
	{"configuration", [3]string{"returnImmediately", "blocking", "blocking"}, "not"},
	{"configuration", [3]string{"taskPushNotificationConfig", "pushNotificationConfig", "pushNotification"}, "push"},
	{"push", [3]string{"authentication", "authentication", "authentication"}, "login"},
	{"login", [3]string{"scheme", "schemes", "schemes"}, "first"},
	{"message", [3]string{"role", "role", "role"}, "role"},
	{"message", [3]string{"parts", "parts", "content"}, "part"},
	{"part", [3]string{"raw", "file.bytes", "file.fileWithBytes"}, ""},
	{"part", [3]string{"url", "file.uri", "file.fileWithUri"}, ""},
	{"part", [3]string{"filename", "file.name", "file.name"}, ""},
	{"part", [3]string{"mediaType", "file.mimeType", "file.mimeType"}, ""},
	{"part", [3]string{"data", "data", "data.data"}, "object"},
	{"artifact", [3]string{"parts", "parts", "parts"}, "part"},
	{"task", [3]string{"status", "status", "status"}, "status"},
	{"task", [3]string{"artifacts", "artifacts", "artifacts"}, "artifact"},
	{"task", [3]string{"history", "history", "history"}, "message"},
	{"status", [3]string{"state", "state", "state"}, "state"},
	{"status", [3]string{"message", "message", "message"}, "message"},
	{"statusUpdate", [3]string{"status", "status", "status"}, "status"},
	{"artifactUpdate", [3]string{"artifact", "artifact", "artifact"}, "artifact"},
	{"result", [3]string{"task", "task", "task"}, "task"},
	{"result", [3]string{"message", "message", "message"}, "message"},
	{"result", [3]string{"statusUpdate", "statusUpdate", "statusUpdate"}, "statusUpdate"},
	{"result", [3]string{"artifactUpdate", "artifactUpdate", "artifactUpdate"}, "artifactUpdate"},
	{"tasks", [3]string{"tasks", "tasks", "tasks"}, "task"},
}

// kinds are the values of the member "kind" in formRPC.
var kinds = map[string]string{"message": "message", "task": "task", "statusUpdate": "status-update", "artifactUpdate": "artifact-update"}

// at returns the member at a path of names.
func at(v wire.Value, path string) (wire.Value, bool) {
	outer, inner, nested := strings.Cut(path, ".")
	m, ok := v.Get(outer)
	if nested && ok {
		return m.Get(inner)
	}
	return m, ok
}

func withAt(v wire.Value, path string, m wire.Value) wire.Value {
	outer, inner, nested := strings.Cut(path, ".")
	if nested {
		old, _ := v.Get(outer)
		m = wire.Obj(old.Members()...).With(inner, m)
	}
	return v.With(outer, m)
}

// convert returns a value of a type in another form. It leaves out nothing but the members "kind" and "final".
func convert(v wire.Value, of string, from, to form) wire.Value {
	switch {
	case from == to:
		return v
	case v.Kind() == wire.Array && of != "first" && of != "object":
		var list []wire.Value
		for elem := range v.Elems() {
			list = append(list, convert(elem, of, from, to))
		}
		return wire.Arr(list...)
	case v.Kind() != wire.Object || of == "" || of == "object":
		return convertLeaf(v, of, from, to)
	}
	out, known := wire.Obj(), []string{}
	if from == formRPC {
		known = append(known, "kind")
	}
	if kind := kinds[of]; kind != "" && to == formRPC {
		out = out.With("kind", wire.Text(kind))
	}
	for _, r := range table {
		if r.of != of {
			continue
		}
		outer, _, _ := strings.Cut(r.names[from], ".")
		known = append(known, outer)
		if m, ok := at(v, r.names[from]); ok {
			out = withAt(out, r.names[to], convert(m, r.is, from, to))
		}
	}
	all := out.Members()
	for _, m := range v.Members() {
		if _, taken := out.Get(m.Key); !taken && !slices.Contains(known, m.Key) {
			all = append(all, m)
		}
	}
	out = wire.Obj(all...)
	switch {
	case of == "part":
		out = finishPart(out, to)
	case of == "statusUpdate" && from == form10:
		status, _ := v.Get("status")
		out = out.With("final", wire.Bool(isFinal(status.GetStr("state"))))
	case of == "statusUpdate":
		out = out.Without("final")
	}
	return out
}

// finishPart gives a part its kind. In 0.3, only a file has a name and a media type.
func finishPart(v wire.Value, to form) wire.Value {
	if file, ok := v.Get("file"); ok && to != form10 && file.Without("name", "mimeType").Len() == 0 {
		v = v.Without("file")
	}
	if to == formRPC {
		for _, kind := range []string{"text", "file", "data"} {
			if _, ok := v.Get(kind); ok {
				return v.With("kind", wire.Text(kind))
			}
		}
	}
	return v
}

func convertLeaf(v wire.Value, of string, from, to form) wire.Value {
	text, _ := v.Str()
	switch of {
	case "not":
		if b, ok := v.Boolean(); ok {
			return wire.Bool(!b)
		}
	case "first": // one scheme in 1.0, a list of them in 0.3
		if from == form10 {
			return wire.Arr(v)
		}
		if v.Kind() == wire.Array && v.Len() > 0 {
			return v.At(0)
		}
	case "object": // 1.0 allows any value, 0.3 only objects
		if to != form10 && v.Kind() != wire.Object {
			return wire.Obj(wire.Field("value", v))
		}
	case "role", "state":
		return wire.Text(convertName(text, of, from, to))
	}
	return v
}

// convertName returns a role or a state in another form. Unknown names stay.
func convertName(name, of string, from, to form) string {
	prefix := map[string]string{"role": "ROLE_", "state": "TASK_STATE_"}[of]
	switch {
	case from == formRPC && name == "unknown":
		name = prefix + "UNSPECIFIED"
	case from == formRPC && !strings.HasPrefix(name, prefix):
		name = prefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	case from == formREST && name == "TASK_STATE_CANCELLED":
		name = "TASK_STATE_CANCELED"
	}
	switch {
	case to == formRPC && name == prefix+"UNSPECIFIED":
		return "unknown"
	case to == formRPC:
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
	case to == formREST && name == "TASK_STATE_CANCELED":
		return "TASK_STATE_CANCELLED"
	}
	return name
}
