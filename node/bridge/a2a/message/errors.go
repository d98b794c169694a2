package message

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Error is a refusal of an A2A request. Its public part comes from the table in this file and quotes nothing from the
// request; only [ReadError] takes the text of another agent. Two errors of the same row match under [errors.Is].
type Error struct {
	Code    int    // of JSON-RPC, or what another agent sent
	Status  int    // of HTTP+JSON
	Name    string // canonical code of google.rpc: "NOT_FOUND"
	Reason  string // "TASK_NOT_FOUND"
	Message string
	After   time.Duration // sent as Retry-After; 0 means no header

	isHTTP bool // an answer over JSON-RPC also has Status as its HTTP status; otherwise that is 200
	cause  error
}

func (e *Error) Error() string {
	if e.cause != nil {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the private cause, which is never sent.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an error of the same row.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Reason == e.Reason
}

// At returns a copy that appends detail to the public message. detail must be a constant text.
func (e *Error) At(detail string) *Error {
	c := *e
	c.Message += ": " + detail
	return &c
}

// Because returns a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// Domain is the value of the member "domain" in the ErrorInfo of each A2A error (A2A-8).
const Domain = "a2a-protocol.org"

const typeErrorInfo = "type.googleapis.com/google.rpc.ErrorInfo"

// The errors of JSON-RPC, of A2A-8, and of requests that HTTP refuses.
var (
	ErrParse   = newError(-32700, http.StatusBadRequest, "INVALID_ARGUMENT", "PARSE_ERROR", "the body is not one strict JSON object")
	ErrRequest = newError(-32600, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_REQUEST", "the body is not a JSON-RPC 2.0 request")
	ErrMethod  = newError(-32601, http.StatusNotFound, "NOT_FOUND", "METHOD_NOT_FOUND", "there is no such method")
	ErrParams  = newError(-32602, http.StatusBadRequest, "INVALID_ARGUMENT", "INVALID_PARAMS", "the parameters are not acceptable")
	ErrFault   = newError(-32603, http.StatusInternalServerError, "INTERNAL", "INTERNAL_ERROR", "internal error")

	ErrTaskNotFound      = newError(-32001, http.StatusNotFound, "NOT_FOUND", "TASK_NOT_FOUND", "there is no such task")
	ErrNotCancelable     = newError(-32002, http.StatusBadRequest, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE", "the task has ended")
	ErrPushUnsupported   = newError(-32003, http.StatusBadRequest, "FAILED_PRECONDITION", "PUSH_NOTIFICATION_NOT_SUPPORTED", "push notifications are not supported")
	ErrUnsupported       = newError(-32004, http.StatusBadRequest, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION", "the operation is not supported")
	ErrContentType       = newError(-32005, http.StatusBadRequest, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED", "the media type is not supported")
	ErrAgentResponse     = newError(-32006, http.StatusInternalServerError, "INTERNAL", "INVALID_AGENT_RESPONSE", "the agent gave an invalid answer")
	ErrNoExtendedCard    = newError(-32007, http.StatusBadRequest, "FAILED_PRECONDITION", "EXTENDED_AGENT_CARD_NOT_CONFIGURED", "there is no extended card")
	ErrExtensionRequired = newError(-32008, http.StatusBadRequest, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED", "the client must support a required extension")
	ErrVersion           = newError(-32009, http.StatusBadRequest, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED", "this agent speaks A2A 1.0 and 0.3; the method or the path says which")

	ErrUnauthenticated = newHTTPError(-31401, http.StatusUnauthorized, "UNAUTHENTICATED", "a valid bearer token is required")
	ErrForbidden       = newHTTPError(-31403, http.StatusForbidden, "PERMISSION_DENIED", "the caller may not contact this agent")
	ErrTooLarge        = newHTTPError(-32000, http.StatusRequestEntityTooLarge, "OUT_OF_RANGE", "the body is too large")
	ErrBusy            = newHTTPError(-32000, http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", "too many requests")
	ErrUnavailable     = newHTTPError(-32000, http.StatusServiceUnavailable, "UNAVAILABLE", "the agent cannot take the request now")
)

// newError returns an error that has the HTTP status 200 over JSON-RPC.
func newError(code, status int, name, reason, message string) *Error {
	return &Error{Code: code, Status: status, Name: name, Reason: reason, Message: message}
}

// newHTTPError returns an error that has the same HTTP status in both bindings.
func newHTTPError(code, status int, name, message string) *Error {
	return &Error{Code: code, Status: status, Name: name, Reason: name, Message: message, isHTTP: true}
}

// Errors returns the rows of the table, which are shared and must not be changed.
func Errors() []*Error {
	return []*Error{
		ErrParse, ErrRequest, ErrMethod, ErrParams, ErrFault, ErrTaskNotFound, ErrNotCancelable, ErrPushUnsupported,
		ErrUnsupported, ErrContentType, ErrAgentResponse, ErrNoExtendedCard, ErrExtensionRequired, ErrVersion,
		ErrUnauthenticated, ErrForbidden, ErrTooLarge, ErrBusy, ErrUnavailable,
	}
}

// FromMesh returns the A2A error for a refusal of the node.
func FromMesh(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		return ErrUnavailable.Because(err)
	}
	out := ErrFault
	switch {
	case errors.Is(e, wire.ErrIDReused):
		out = ErrParams.At("the message id was used before with other content")
	case errors.Is(e, wire.ErrMediaType), errors.Is(e, wire.ErrContentEncoding):
		out = ErrContentType.At("the body must be application/json or application/a2a+json, not compressed")
		if errors.Is(e, wire.ErrContentEncoding) {
			out.Status, out.isHTTP = e.Status, true
		}
	case e.Code == wire.ConversationClosed:
		out = ErrUnsupported.At("the context has ended")
	case e.Code == wire.IntentNotSupported:
		out = ErrUnsupported.At("this agent does not support the intent")
	case e.Status == http.StatusRequestEntityTooLarge:
		out = ErrTooLarge
	case e.Status == http.StatusTooManyRequests:
		out = ErrBusy
	case e.Status == http.StatusServiceUnavailable:
		out = ErrUnavailable
	case e.Status == http.StatusForbidden:
		out = ErrForbidden
	case e.Status == http.StatusUnauthorized:
		out = ErrUnauthenticated
	case e.Status == http.StatusBadRequest:
		out = ErrParams
	}
	out = out.Because(err)
	out.After = e.RetryAfter
	return out
}

// details returns the array of objects that explains the error. Errors of A2A must carry an ErrorInfo (A2A-8).
func (e *Error) details() wire.Value {
	return wire.Arr(wire.Obj(
		wire.TextField("@type", typeErrorInfo), wire.TextField("reason", e.Reason), wire.TextField("domain", Domain),
	))
}

// RPC returns the JSON-RPC answer to the request with the given id, and its HTTP status.
func (e *Error) RPC(id wire.Value) (status int, body []byte) {
	status = http.StatusOK
	if e.isHTTP {
		status = e.Status
	}
	return status, wire.Obj(
		wire.TextField("jsonrpc", "2.0"), wire.Field("id", id), wire.Field("error", e.rpc()),
	).JSON()
}

func (e *Error) rpc() wire.Value {
	return wire.Obj(wire.Field("code", wire.Int(int64(e.Code))), wire.TextField("message", e.Message), wire.Field("data", e.details()))
}

// REST returns the answer of the HTTP+JSON binding, in the form of AIP-193.
func (e *Error) REST() (status int, body []byte) {
	return e.Status, wire.Obj(wire.Field("error", wire.Obj(
		wire.Field("code", wire.Int(int64(e.Status))), wire.TextField("status", e.Name), wire.TextField("message", e.Message),
		wire.Field("details", e.details()),
	))).JSON()
}

// ReadError returns the error that another agent answered with. v is the member "error" of the answer, and status the
// HTTP status. An unknown error keeps its code, without a reason. The message is one line of at most 300 characters.
func ReadError(status int, v wire.Value) *Error {
	code := intOf(v, "code")
	reason := ""
	list, _ := v.Get("details")
	if list.Kind() != wire.Array {
		list, _ = v.Get("data")
	}
	for d := range list.Elems() {
		if d.GetStr("domain") == Domain {
			reason = d.GetStr("reason")
		}
	}
	e := &Error{Code: code, Status: status, Name: "UNKNOWN"}
	i := slices.IndexFunc(Errors(), func(e *Error) bool {
		isShared := e.Code == ErrTooLarge.Code // several rows have this code, so it means nothing without their status
		return reason != "" && e.Reason == reason || reason == "" && e.Code == code && (!isShared || e.Status == status)
	})
	if i >= 0 {
		found := *Errors()[i]
		e = &found
		e.Status = max(status, found.Status) // over JSON-RPC, status is 200
	}
	if text := wire.OneLine(v.GetStr("message"), 300); text != "" {
		e.Message = text
	}
	return e
}

// SetHeader sets the HTTP header fields of a refusal.
func (e *Error) SetHeader(h http.Header) {
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	if e.After > 0 {
		h.Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(e.After), 10))
	}
}
