package message

import (
	"net/http"
	"net/url"

	"github.com/agentmesh/agentmesh/node/wire"
)

// SpokenVersion returns the version of A2A that we speak at the interface, for the header A2A-Version.
func (i Interface) SpokenVersion() string {
	if i.Version == "" {
		return "1.0"
	}
	return i.Version
}

// Request returns the HTTP request for a call. params has the form of 1.0.
func (i Interface) Request(method string, params wire.Value) (verb, target string, body []byte) {
	if method == SendMessage {
		params = convert(params, "send", form10, i.form())
	}
	if i.Binding == HTTPJSON {
		verb, path := restPath(method, params)
		if i.Tenant != "" {
			path = "/" + url.PathEscape(i.Tenant) + path
		}
		if i.form() == formREST {
			path = "/v1" + path
		}
		if verb == http.MethodPost {
			body = params.Without("id").JSON()
		}
		return verb, i.URL + path, body
	}
	params = params.WithOptional("tenant", i.Tenant)
	if i.form() == formRPC {
		method = oldNames[method]
	}
	// Equal calls may have equal ids, because each has a connection or stream of its own.
	return http.MethodPost, i.URL, wire.Obj(
		wire.TextField("jsonrpc", "2.0"), wire.TextField("id", wire.HashOf(method, string(params.JSON()))[:16]), wire.TextField("method", method), wire.Field("params", params),
	).JSON()
}

// restPath returns the HTTP method and the path of an A2A method in the HTTP+JSON binding.
func restPath(method string, params wire.Value) (verb, path string) {
	id := url.PathEscape(params.GetStr("id"))
	switch method {
	case GetTask:
		return http.MethodGet, "/tasks/" + id + "?historyLength=0"
	case CancelTask:
		return http.MethodPost, "/tasks/" + id + ":cancel"
	case ListTasks:
		return http.MethodGet, "/tasks?historyLength=1&contextId=" + url.QueryEscape(params.GetStr("contextId"))
	}
	return http.MethodPost, "/message:send"
}

// Answer returns the result in the body of an answer, in the form of 1.0, or the error in it. ok is false if it has
// neither.
func (i Interface) Answer(method string, v wire.Value) (result, fault wire.Value, ok bool) {
	fault, _ = v.Get("error")
	result = v
	if i.Binding == JSONRPC {
		result, _ = v.Get("result")
	} else if _, isFault := v.Get("code"); isFault && i.form() == formREST {
		fault = v
	}
	switch {
	case result.Kind() != wire.Object:
		return result, fault, false
	case i.form() == formRPC && result.GetStr("kind") == "message":
		return wire.Obj(wire.Field("message", convert(result, "message", formRPC, form10))), fault, true
	case i.form() == formREST && method == SendMessage:
		result = convert(result, "result", formREST, form10)
	case i.form() != form10:
		result = convert(result, "task", i.form(), form10)
	}
	return result, fault, true
}
