package wire

import (
	"fmt"
	"strings"
	"time"
)

// Code is one of the eight error codes of the specification (§8).
type Code string

const (
	InvalidMessage     Code = "INVALID_MESSAGE"
	InvalidSignature   Code = "INVALID_SIGNATURE"
	IntentNotSupported Code = "INTENT_NOT_SUPPORTED"
	RateLimited        Code = "RATE_LIMITED"
	AgentUnavailable   Code = "AGENT_UNAVAILABLE"
	ConversationClosed Code = "CONVERSATION_CLOSED"
	Unauthorized       Code = "UNAUTHORIZED"
	OwnerRejected      Code = "OWNER_REJECTED"
)

// Error is a refusal: the public part that the peer gets, and the private cause.
//
// The public part (Code, Status, Retry, Message) of our refusals to peers comes from the table in this file and quotes
// nothing from the request (AM-27). An Error from [ParseError] has a peer's texts. The cause is for the log and never
// sent; [errors.Unwrap] returns it. Errors of one row match under [errors.Is], whatever their details and causes.
// Errors without a row match by code and status.
type Error struct {
	Code       Code
	Status     int           // HTTP status
	Retry      bool          // the same request may succeed later
	Message    string        // public text
	RetryAfter time.Duration // sent as Retry-After in whole seconds, rounded up; 0 means no header

	row   string // name of the row in the table
	cause error
}

func (e *Error) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an error of the same row or, without a row, of the same code and status.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.row == e.row && t.Code == e.Code && t.Status == e.Status
}

// Row returns the name of the error's row in [Table], a stable key for logs and metrics. A peer's error has no row.
func (e *Error) Row() string { return e.row }

// Because returns a copy with a private cause.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// At returns a copy that appends detail to the public message. detail must be a fixed text of our code, such as a field
// name and its fault, never text from the request.
func (e *Error) At(detail string) *Error {
	c := *e
	c.Message += ": " + detail
	return &c
}

// CeilSeconds returns d in whole seconds, rounded up, so that a peer that waits that long is not refused again.
func CeilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// After returns a copy that asks the peer to try again after d.
func (e *Error) After(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// WithField returns a copy with the field and reason of f as the detail of the public message.
func (e *Error) WithField(f *FieldError) *Error { return e.At(f.Error()).Because(f) }

// FieldError names a field and its fault. Both texts are fixed in our code.
type FieldError struct {
	Field  string // "payload.event.title"
	Reason string // "must be a string"
}

func (e *FieldError) Error() string { return e.Field + " " + e.Reason }

// The rows of the table: every refusal of this project that a peer can distinguish (AM-28).
var (
	ErrTooLarge        = row("too-large", InvalidMessage, 413, "the body is too large")
	ErrMediaType       = row("media-type", InvalidMessage, 415, "Content-Type must be application/json")
	ErrContentEncoding = row("content-encoding", InvalidMessage, 415, "Content-Encoding is not accepted")
	ErrSyntax          = row("syntax", InvalidMessage, 400, "the body is not one strict JSON object")
	ErrSchema          = row("schema", InvalidMessage, 400, "the message does not match the schema")
	ErrRecipient       = row("recipient", InvalidMessage, 400, "no such agent is served at this endpoint")
	ErrTimeWindow      = row("time-window", InvalidMessage, 400, "the timestamp is outside the accepted window")
	ErrIDReused        = row("id-reused", InvalidMessage, 409, "the message id was used before with other content")
	ErrPayload         = row("payload", InvalidMessage, 400, "the payload does not match its intent")
	ErrSealed          = row("sealed", InvalidMessage, 400, "the sealed payload cannot be opened")
	ErrCloseStatus     = row("close-status", InvalidMessage, 400, "a close needs status completed or failed")
	ErrCard            = row("card", InvalidMessage, 400, "the card is not acceptable")
	ErrCardID          = row("card-id", InvalidMessage, 400, "agent_id differs from the path")
	ErrQuery           = row("query", InvalidMessage, 400, "the query is not acceptable")
	ErrCursor          = row("cursor", InvalidMessage, 400, "the cursor does not belong to this query")
	ErrRoute           = row("route", InvalidMessage, 404, "no such route")
	ErrMethod          = row("method", InvalidMessage, 405, "this method is not allowed here")
	ErrIDTaken         = row("id-taken", InvalidMessage, 409, "the agent_id is taken")
	ErrIDReserved      = row("id-reserved", InvalidMessage, 409, "this id is reserved for the key it is derived from")
	ErrLateReply       = row("late-reply", InvalidMessage, 409, "nobody waits for this reply")
	ErrForeignHost     = row("foreign-host", InvalidMessage, 400, "this server answers to loopback names only")

	ErrUnknownSender = row("unknown-sender", InvalidSignature, 401, "the sender has no card with a usable key")
	ErrSignature     = row("signature", InvalidSignature, 401, "the signature does not verify")
	ErrKeyProof      = row("key-proof", InvalidSignature, 401, "the key proof does not verify")

	ErrNoBearer    = row("no-bearer", Unauthorized, 401, "a bearer token is required")
	ErrNotAllowed  = row("not-allowed", Unauthorized, 403, "the sender may not contact this agent")
	ErrWrongBearer = row("wrong-bearer", Unauthorized, 403, "the bearer token does not own this card")
	ErrClosed      = row("registration-closed", Unauthorized, 403, "registration needs the operator's permission")
	ErrBanned      = row("banned", Unauthorized, 403, "the operator does not list this card")
	ErrCrossOrigin = row("cross-origin", Unauthorized, 403, "cross-origin requests are refused")

	ErrOwnerRejected = row("owner-rejected", OwnerRejected, 403, "the owner rejected this interaction")

	ErrIntent = row("intent", IntentNotSupported, 422, "this agent does not support the intent")

	ErrConversationClosed = row("conversation-closed", ConversationClosed, 409, "the conversation has ended")

	ErrRateLimited = retryRow("rate-limited", RateLimited, 429, "too many requests")
	ErrHoldsFull   = retryRow("owner-decides-first", RateLimited, 429, "the owner must first decide on messages that wait; send again after that").After(OwnerDecisionTime)
	ErrQuota       = retryRow("quota", RateLimited, 429, "the registration quota is used up")

	ErrPaused      = retryRow("paused", AgentUnavailable, 503, "the agent is not accepting messages")
	ErrNoDirectory = retryRow("no-directory", AgentUnavailable, 503, "the sender's directory cannot be reached")
	ErrUnavailable = retryRow("unavailable", AgentUnavailable, 503, "the server cannot take the request now")
	ErrNoAgent     = row("no-agent", AgentUnavailable, 404, "no such agent")
	ErrRemoved     = row("removed", AgentUnavailable, 404, "the operator removed this card")
	ErrInternal    = row("internal", AgentUnavailable, 500, "internal error")
)

// OwnerDecisionTime is the waiting time that we announce to a sender while the owner of an agent decides.
const OwnerDecisionTime = time.Hour

// defaultRetryAfter is the waiting time of a 429 or 503, unless After sets another.
const defaultRetryAfter = 10 * time.Second

func row(name string, code Code, status int, message string) *Error {
	return &Error{Code: code, Status: status, Message: message, row: name}
}

func retryRow(name string, code Code, status int, message string) *Error {
	return &Error{Code: code, Status: status, Message: message, row: name, Retry: true, RetryAfter: defaultRetryAfter}
}

// Table returns all rows, in the order of the documentation. The caller must not change them.
func Table() []*Error {
	return []*Error{
		ErrTooLarge, ErrMediaType, ErrContentEncoding, ErrSyntax, ErrSchema, ErrRecipient, ErrTimeWindow,
		ErrIDReused, ErrPayload, ErrSealed, ErrCloseStatus, ErrCard, ErrCardID, ErrQuery, ErrCursor, ErrRoute, ErrMethod,
		ErrIDTaken, ErrIDReserved, ErrLateReply, ErrForeignHost,
		ErrUnknownSender, ErrSignature, ErrKeyProof,
		ErrNoBearer, ErrNotAllowed, ErrWrongBearer, ErrClosed, ErrBanned, ErrCrossOrigin,
		ErrOwnerRejected,
		ErrIntent,
		ErrConversationClosed,
		ErrRateLimited, ErrHoldsFull, ErrQuota,
		ErrPaused, ErrNoDirectory, ErrUnavailable, ErrNoAgent, ErrRemoved, ErrInternal,
	}
}

// AppendJSON appends the error body of the specification (§8).
func (e *Error) AppendJSON(dst []byte) []byte {
	return Obj(Member{"error", Obj(
		Member{"code", Text(string(e.Code))},
		Member{"message", Text(e.Message)},
		Member{"retry", Bool(e.Retry)},
	)}).AppendJSON(dst)
}

// ParseError reads an error body that a peer sent with this status. ok is false if v is not an error body. The message
// is the peer's text: clean it before showing it.
func ParseError(status int, v Value) (e *Error, ok bool) {
	body, _ := v.Get("error")
	code := body.GetStr("code")
	if code == "" || len(code) > 64 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
		return nil, false
	}
	retry, _ := body.Get("retry")
	mayRetry, _ := retry.Boolean()
	return &Error{Code: Code(code), Status: status, Message: body.GetStr("message"), Retry: mayRetry}, true
}
