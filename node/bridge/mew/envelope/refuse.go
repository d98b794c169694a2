package envelope

import (
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Refusal describes why an envelope, a frame or a join was not accepted. It becomes a system/error or an HTTP answer.
type Refusal struct {
	Status  int
	From    string     // the sender of the system/error: FromSystem or FromStream
	Payload wire.Value // of the system/error
	Body    wire.Value // of the HTTP answer, if it differs from Payload
	Whole   bool       // the HTTP answer is the whole system/error envelope
	Close   int        // if a join is refused: the code with which the connection is closed
	Reason  string     // for the logs
}

// Refuse returns a refusal from FromSystem whose payload has these members.
func Refuse(status int, reason string, members ...wire.Member) *Refusal {
	return &Refusal{Status: status, From: FromSystem, Reason: reason, Payload: wire.Obj(members...)}
}

// RefuseSyntax returns the refusal of a message that is not JSON.
func RefuseSyntax(message string) *Refusal {
	return Refuse(http.StatusBadRequest, "PROCESSING_ERROR", wire.TextField("error", message), wire.TextField("code", "PROCESSING_ERROR"))
}

// RefuseShape returns the refusal of a message with a field that is missing or wrong.
func RefuseShape(message string) *Refusal {
	return Refuse(http.StatusBadRequest, "VALIDATION_ERROR", wire.TextField("error", message), wire.TextField("code", "VALIDATION_ERROR"))
}

// RefuseTooLarge returns the refusal of a message with too many bytes. Over a WebSocket, such a message never gets here.
func RefuseTooLarge() *Refusal {
	return Refuse(http.StatusRequestEntityTooLarge, "too_large", wire.TextField("error", "the message is too large"), wire.TextField("code", "PROCESSING_ERROR"))
}

// RefuseWith returns a refusal whose payload has the name of an error and a message.
func RefuseWith(status int, name, message string) *Refusal {
	return Refuse(status, name, wire.TextField("error", name), wire.TextField("message", message))
}

// RefuseReservedKind returns the refusal of a kind that only the gateway sends.
func RefuseReservedKind(kind string) *Refusal {
	return RefuseWith(http.StatusBadRequest, "invalid_request", ToPrintable(kind, MaxKind)+" is reserved for the gateway. Participants cannot send it")
}

// RefuseCapability returns the refusal of an envelope that the capabilities of its sender do not allow.
func RefuseCapability(id, kind string, held wire.Value) *Refusal {
	r := Refuse(http.StatusForbidden, "capability_violation",
		wire.TextField("error", "capability_violation"), wire.TextField("attempted_kind", kind), wire.Field("your_capabilities", held))
	r.Body = wire.Obj(wire.TextField("error", "capability_violation"),
		wire.TextField("message", "Participant "+id+" lacks capability for "+ToPrintable(kind, MaxKind)))
	return r
}

// RefuseToken returns the refusal of a join whose token or participant id is not accepted. It closes the connection.
func RefuseToken(message string) *Refusal {
	r := RefuseWith(http.StatusUnauthorized, "unauthorized", message)
	r.Close = CloseUnauthorized
	return r
}

// RefuseStream returns the refusal of a stream command. HTTP answers it with the whole envelope.
func RefuseStream(status int, name, message string) *Refusal {
	r := RefuseWith(status, name, message)
	r.From, r.Whole = FromStream, true
	return r
}

// RefuseWriter returns the refusal of a frame from a participant that may not write to the stream.
func RefuseWriter(stream string) *Refusal {
	r := Refuse(http.StatusForbidden, "unauthorized_stream_write", wire.TextField("error", "unauthorized_stream_write"),
		wire.TextField("stream_id", stream), wire.TextField("message", "You are not authorized to write to this stream"))
	r.From = FromStream
	return r
}

// RefuseTargets returns the refusal of a stream that names participants who are not in the space.
func RefuseTargets(missing []string) *Refusal {
	r := Refuse(http.StatusBadRequest, "target_not_found", wire.TextField("error", "target_not_found"),
		wire.Field("targets", wire.Texts(missing)), wire.TextField("message", "A target of the stream is not in the space"))
	r.Whole = true
	return r
}

// RefuseDuringPause returns the refusal of a participant that is paused until a time, or without end if until is zero.
func RefuseDuringPause(until time.Time) *Refusal {
	end := wire.Value{}
	if !until.IsZero() {
		end = wire.Text(FormatTime(until))
	}
	return Refuse(http.StatusForbidden, "participant_paused", wire.TextField("error", "participant_paused"), wire.Field("until", end))
}

// RefuseWithName returns a refusal whose payload has only the name of an error.
func RefuseWithName(status int, name string) *Refusal {
	return Refuse(status, name, wire.TextField("error", name))
}

// RefuseRate returns the refusal of a sender that must wait.
func RefuseRate(wait time.Duration) *Refusal {
	return Refuse(http.StatusTooManyRequests, "rate_limited", wire.TextField("error", "rate_limited"),
		wire.Field("retry_after", wire.Int(max(wire.CeilSeconds(wait), 1))))
}

// RefuseStore returns the refusal of a change that could not be stored. Nothing was changed.
func RefuseStore() *Refusal {
	return RefuseWith(http.StatusServiceUnavailable, "unavailable", "The change could not be stored. Try again")
}

// These are the close codes that only MEW gateways use.
const (
	CloseUnauthorized     = 4401
	CloseKicked           = 4403
	CloseReplaced         = 4409 // the participant has joined over another connection
	CloseTooManyTakeovers = 4429 // the participant has replaced its own connection too often
)

// Envelope returns the refusal as a system/error to one participant. trigger is the id of the refused envelope.
func (r *Refusal) Envelope(to, trigger string) Outgoing {
	o := Outgoing{From: r.From, Kind: KindError, To: []string{to}, Payload: r.Payload}
	if trigger != "" {
		o.Correlation = []string{trigger}
	}
	return o
}
