package message

import (
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Bounds of everything that a stranger sends (A2A-G4).
const (
	MaxBody   = 1 << 20
	maxDepth  = 32
	maxValues = 20_000
	maxID     = 128 // bytes of a message, task, context or configuration id
	maxParts  = 64  // of a message
)

// Binding is one of the two transports that we serve.
type Binding string

const (
	JSONRPC  Binding = "JSONRPC"
	HTTPJSON Binding = "HTTP+JSON"
)

// The methods of A2A 1.0 (A2A-5), its HTTP headers and its media type.
const (
	SendMessage      = "SendMessage"
	SendStreaming    = "SendStreamingMessage"
	GetTask          = "GetTask"
	ListTasks        = "ListTasks"
	CancelTask       = "CancelTask"
	SubscribeToTask  = "SubscribeToTask"
	CreatePush       = "CreateTaskPushNotificationConfig"
	GetPush          = "GetTaskPushNotificationConfig"
	ListPush         = "ListTaskPushNotificationConfigs"
	DeletePush       = "DeleteTaskPushNotificationConfig"
	GetExtendedCard  = "GetExtendedAgentCard"
	HeaderVersion    = "A2A-Version"
	HeaderExtensions = "A2A-Extensions"
	MediaType        = "application/a2a+json"
)

// Call is one request, whichever binding it came over.
type Call struct {
	Binding Binding
	Method  string
	ID      wire.Value // of a JSON-RPC request
	Params  wire.Value // an object
	Tenant  string     // the agent behind a URL that several agents share; "" if the client names none

	form form
}

// Streams reports whether the answer to the call is a stream of events.
func (c Call) Streams() bool { return c.Method == SendStreaming || c.Method == SubscribeToTask }

// Blocks reports whether the caller of SendMessage waits for the result (A2A-9).
func (c Call) Blocks() bool {
	v, _ := c.Params.Get("configuration")
	immediately, _ := v.Get("returnImmediately")
	if yes, isBool := immediately.Boolean(); isBool {
		return !yes
	}
	old, _ := v.Get("blocking") // the name in 0.3
	return old.Kind() != wire.False
}

// Answer returns the body of a successful answer.
func (c Call) Answer(result wire.Value) []byte {
	if c.IsOld() {
		result = c.writeOld(result)
	}
	if c.Binding == HTTPJSON {
		return result.JSON()
	}
	return wire.Obj(wire.TextField("jsonrpc", "2.0"), wire.Field("id", c.ID), wire.Field("result", result)).JSON()
}

// MediaType returns the media type of an answer with an HTTP status. Errors of HTTP+JSON have the type of AIP-193.
func (c Call) MediaType(status int) string {
	if c.Binding == HTTPJSON && status == http.StatusOK && !c.IsOld() {
		return MediaType
	}
	return "application/json"
}

// VersionOf returns the version of A2A that a client asks for, in a header or in the query (A2A-7).
func VersionOf(r *http.Request) string {
	if v := r.Header.Get(HeaderVersion); v != "" {
		return v
	}
	return r.URL.Query().Get(HeaderVersion)
}

// AcceptMediaType replaces A2A's media type in a request by application/json, for a reader that accepts only that.
func AcceptMediaType(h http.Header) {
	if kind, params, err := mime.ParseMediaType(h.Get("Content-Type")); err == nil && kind == MediaType {
		h.Set("Content-Type", mime.FormatMediaType("application/json", params))
	}
}

// Refuse returns the status and the body of an answer that refuses the call.
func (c Call) Refuse(e *Error) (status int, body []byte) {
	switch {
	case c.form == formREST:
		return e.Status, e.rpc().JSON()
	case c.Binding == HTTPJSON:
		return e.REST()
	}
	return e.RPC(c.ID)
}

// parseBody reads a body strictly: one JSON object without duplicate keys, with bounded depth and number of values.
func parseBody(body []byte) (wire.Value, *Error) {
	if len(body) > MaxBody {
		return wire.Value{}, ErrTooLarge
	}
	v, err := wire.ParseForeign(body, maxDepth, maxValues)
	if err != nil || v.Kind() != wire.Object {
		return wire.Value{}, ErrParse.Because(err)
	}
	return v, nil
}

// ReadRPC reads a JSON-RPC request. Even with an error, the Call has the binding and, if it could be read, the id, so
// that [Call.Refuse] works. version is the value of A2A-Version; see [VersionOf].
func ReadRPC(body []byte, version string) (Call, *Error) {
	c := Call{Binding: JSONRPC}
	v, e := parseBody(body)
	if e != nil {
		return c, e
	}
	id, hasID := v.Get("id")
	if text, ok := id.Str(); ok && len(text) <= 2*maxID || id.Kind() == wire.Number {
		c.ID = id
	}
	c.Method = v.GetStr("method")
	if v.GetStr("jsonrpc") != "2.0" || !hasID || c.ID.IsNull() || c.Method == "" {
		return c, ErrRequest
	}
	c.Params, _ = v.Get("params")
	if c.Params.IsNull() {
		c.Params = wire.Obj()
	}
	if c.Params.Kind() != wire.Object {
		return c, ErrParams.At("params must be an object")
	}
	c.Params = spell(c.Params)
	for name, old := range oldNames {
		if c.Method == old {
			c.Method, c.form = name, formRPC
		}
	}
	if oldNames[c.Method] == "" {
		return c, ErrMethod
	}
	c.Tenant = c.Params.GetStr("tenant")
	return c.checked(version)
}

// checked implements A2A-7, A2A-15 and A2A-D2: the name of the method, or the path, says whether the call is of 1.0 or
// 0.3, and a version must not say otherwise. It accepts any patch number. A call of 1.0 without a version must not have
// a message of 0.3. A call of 0.3 gets the parameters of 1.0.
func (c Call) checked(version string) (Call, *Error) {
	m, _ := c.Params.Get("message")
	role := m.GetStr("role")
	isOld := c.IsOld() || role == "user" || role == "agent" || m.GetStr("kind") != ""
	if c.IsOld() {
		c.readOld()
	}
	major, rest, _ := strings.Cut(strings.TrimSpace(version), ".")
	minor, _, _ := strings.Cut(rest, ".")
	switch named := major + "." + minor; {
	case named == "." && isOld == c.IsOld(), named == "1.0" && !c.IsOld(), named == oldVersion && c.IsOld():
		return c, nil
	}
	return c, ErrVersion
}

// spell returns v with the names that ProtoJSON writes, for a client that sends those of the proto: history_length
// (A2A-16).
func spell(v wire.Value) wire.Value {
	if v.Kind() == wire.Array {
		var list []wire.Value
		for elem := range v.Elems() {
			list = append(list, spell(elem))
		}
		return wire.Arr(list...)
	}
	var out []wire.Member
	var taken map[string]bool
	for _, m := range v.Members() {
		name := camelCase(m.Key)
		if name != m.Key && taken == nil {
			taken = make(map[string]bool)
			for _, m := range v.Members() {
				taken[m.Key] = true
			}
		}
		if name != m.Key && taken[name] {
			continue
		}
		if taken != nil {
			taken[name] = true
		}
		if m.Key != "metadata" && m.Key != "data" { // the names below these are the client's own
			m.Value = spell(m.Value)
		}
		out = append(out, wire.Field(name, m.Value))
	}
	if v.Kind() != wire.Object {
		return v
	}
	return wire.Obj(out...)
}

func camelCase(name string) string {
	if !strings.Contains(name, "_") {
		return name
	}
	words := strings.Split(name, "_")
	for i, word := range words[1:] {
		if word != "" {
			words[i+1] = strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return strings.Join(words, "")
}

const routeOldCard = "1 GET card" // of 0.3

// routes are the methods of HTTP+JSON, by number of segments, HTTP method, first segment with its verb, and third
// segment.
var routes = map[string]string{
	"1 POST message:send": SendMessage, "1 POST message:stream": SendStreaming, "1 GET extendedAgentCard": GetExtendedCard, routeOldCard: GetExtendedCard,
	"1 GET tasks": ListTasks, "2 GET tasks": GetTask, "2 POST tasks:cancel": CancelTask, "2 GET tasks:subscribe": SubscribeToTask, "2 POST tasks:subscribe": SubscribeToTask,
	"3 POST tasks pushNotificationConfigs": CreatePush, "3 GET tasks pushNotificationConfigs": ListPush,
	"4 GET tasks pushNotificationConfigs": GetPush, "4 DELETE tasks pushNotificationConfigs": DeletePush,
}

// ReadREST reads a request of the HTTP+JSON binding. path is relative to the URL of the interface, and escaped, because
// an id may contain a slash: "/tasks/t1:cancel". It may begin with a tenant. Subscribing works with GET and POST,
// because the specification and its proto differ (A2A-6).
func ReadREST(method, path string, query url.Values, body []byte, version string) (Call, *Error) {
	c := Call{Binding: HTTPJSON, Params: wire.Obj()}
	segments := strings.Split(strings.Trim(path, "/"), "/")
	for i, escaped := range segments {
		var err error
		if segments[i], err = url.PathUnescape(escaped); err != nil {
			return c, ErrMethod
		}
	}
	if len(segments) > 1 && segments[0] == "v1" {
		c.form, segments = formREST, segments[1:]
	} else if len(segments) > 1 && segments[0] != "tasks" {
		c.Tenant, segments = segments[0], segments[1:]
	}
	count, verb := len(segments), ""
	if count <= 2 { // longer paths end with an id, which may contain a colon
		segments[count-1], verb, _ = strings.Cut(segments[count-1], ":")
	}
	segments = append(segments, "", "", "") // so that the next line can index all of them
	task, sub, config := segments[1], segments[2], segments[3]
	shape := fmt.Sprintf("%d %s %s", count, method, segments[0])
	if verb != "" {
		shape += ":" + verb
	}
	if count > 2 {
		shape += " " + sub
	}
	name, known := routes[shape]
	if !known || shape == routeOldCard && !c.IsOld() {
		return c, ErrMethod
	}
	c.Method = name
	if method == http.MethodPost && len(body) > 0 {
		var e *Error
		if c.Params, e = parseBody(body); e != nil {
			return c, e
		}
		c.Params = spell(c.Params)
	}
	c, e := c.checked(version)
	if method == http.MethodGet {
		for _, key := range slices.Sorted(maps.Keys(query)) {
			name, v := camelCase(key), wire.Text(query.Get(key))
			if on, err := strconv.ParseBool(query.Get(key)); err == nil && name == "includeArtifacts" {
				v = wire.Bool(on)
			}
			if query.Get(key) != "" {
				c.Params = c.Params.With(name, v)
			}
		}
	}
	if task != "" {
		key := "taskId"
		if sub == "" {
			key = "id"
		}
		c.Params = c.Params.With(key, wire.Text(task))
	}
	c.Params = c.Params.WithOptional("id", config)
	return c, e
}

// IDOf returns the id in a member of the parameters, which must have 1 to 128 bytes.
func (c Call) IDOf(member string) (string, *Error) {
	id := c.Params.GetStr(member)
	if id == "" || len(id) > maxID {
		return "", ErrParams.At(member + " must be an id of 1 to 128 bytes")
	}
	return id, nil
}

// HistoryLength returns the number of messages that the caller wants, or -1 if it does not say.
func (c Call) HistoryLength() (int, *Error) {
	n, ok := c.Params.Get("historyLength")
	if !ok || n.IsNull() {
		return -1, nil
	}
	if i, ok := Int(n); ok && i >= 0 {
		return i, nil
	}
	return 0, ErrParams.At("historyLength must be a whole number from 0")
}

// Int returns a whole number, which ProtoJSON and a query may write as a text.
func Int(v wire.Value) (int, bool) {
	digits, isNumber := v.Num()
	if !isNumber {
		digits, _ = v.Str()
	}
	i, err := strconv.ParseInt(digits, 10, 32)
	return int(i), err == nil
}

func intOf(v wire.Value, key string) int {
	n, _ := v.Get(key)
	i, _ := Int(n)
	return i
}

// ExtensionsIn returns the extensions that a client names in the header A2A-Extensions.
func ExtensionsIn(header http.Header) []string {
	var out []string
	for _, line := range header.Values(HeaderExtensions) {
		for uri := range strings.SplitSeq(line, ",") {
			if uri = strings.TrimSpace(uri); uri != "" && len(uri) <= 256 && len(out) < 16 {
				out = append(out, uri)
			}
		}
	}
	return out
}
