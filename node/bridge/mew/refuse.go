package mew

import (
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// refusal is why an envelope, a frame or a join was not accepted: the payload of a system/error, and what HTTP
// answers (section 7 of the rules).
type refusal struct {
	status  int
	from    string     // who says so: system:gateway, or gateway for streams
	payload wire.Value // of system/error
	body    wire.Value // of the HTTP answer, where it is not the payload
	whole   bool       // HTTP answers with the whole envelope
	close   int        // and the connection is closed with this code, where not 0
	reason  string     // for the history
}

func refuse(status int, reason string, members ...wire.Member) *refusal {
	return &refusal{status: status, from: fromSystem, reason: reason, payload: wire.Obj(members...)}
}

func refuseSyntax(message string) *refusal {
	return refuse(http.StatusBadRequest, "PROCESSING_ERROR", wire.TextField("error", message), wire.TextField("code", "PROCESSING_ERROR"))
}

func refuseShape(message string) *refusal {
	return refuse(http.StatusBadRequest, "VALIDATION_ERROR", wire.TextField("error", message), wire.TextField("code", "VALIDATION_ERROR"))
}

func refuseTooLarge() *refusal {
	r := refuse(http.StatusRequestEntityTooLarge, "too_large", wire.TextField("error", "the message is too large"), wire.TextField("code", "PROCESSING_ERROR"))
	r.close = 1009
	return r
}

// refuseWith is an error with a name and a message.
func refuseWith(status int, name, message string) *refusal {
	return refuse(status, name, wire.TextField("error", name), wire.TextField("message", message))
}

func refuseReserved(kind string) *refusal {
	return refuseWith(http.StatusBadRequest, "invalid_request", printable(kind, maxKind)+" is reserved for the gateway. Participants cannot send it")
}

func refuseCapability(id, kind string, held wire.Value) *refusal {
	r := refuse(http.StatusForbidden, "capability_violation",
		wire.TextField("error", "capability_violation"), wire.TextField("attempted_kind", kind), wire.Field("your_capabilities", held))
	r.body = wire.Obj(wire.TextField("error", "capability_violation"),
		wire.TextField("message", "Participant "+id+" lacks capability for "+printable(kind, maxKind)))
	return r
}

func refuseUnauthorized(message string) *refusal {
	r := refuseWith(http.StatusUnauthorized, "unauthorized", message)
	r.close = CloseUnauthorized
	return r
}

// refuseStream is an error of the stream commands, which HTTP answers whole (†).
func refuseStream(status int, name, message string) *refusal {
	r := refuseWith(status, name, message)
	r.from, r.whole = fromStream, true
	return r
}

func refuseWriter(stream string) *refusal {
	r := refuse(http.StatusForbidden, "unauthorized_stream_write", wire.TextField("error", "unauthorized_stream_write"),
		wire.TextField("stream_id", stream), wire.TextField("message", "You are not authorized to write to this stream"))
	r.from = fromStream
	return r
}

func refuseTargets(missing []string) *refusal {
	r := refuse(http.StatusBadRequest, "target_not_found", wire.TextField("error", "target_not_found"),
		wire.Field("targets", wire.Texts(missing)), wire.TextField("message", "A target of the stream is not in the space"))
	r.whole = true
	return r
}

func refusePaused(until time.Time) *refusal {
	end := wire.Value{}
	if !until.IsZero() {
		end = wire.Text(stamp(until))
	}
	return refuse(http.StatusForbidden, "participant_paused", wire.TextField("error", "participant_paused"), wire.Field("until", end))
}

func refuseName(status int, name string) *refusal {
	return refuse(status, name, wire.TextField("error", name))
}

func refuseRate(wait time.Duration) *refusal {
	seconds := int64(wait.Round(time.Second).Seconds())
	return refuse(http.StatusTooManyRequests, "rate_limited", wire.TextField("error", "rate_limited"),
		wire.Field("retry_after", wire.Int(max(seconds, 1))))
}

// refuseStore is for what could not be made durable; nothing was changed.
func refuseStore() *refusal {
	return refuseWith(http.StatusServiceUnavailable, "unavailable", "The change could not be stored. Try again")
}

// The close codes of section 7.
const (
	CloseUnauthorized = 4401
	CloseKicked       = 4403
	CloseReplaced     = 4409
	CloseTakeovers    = 4429
)

// envelope makes the system/error of a refusal.
func (r *refusal) envelope(to, trigger string) outgoing {
	o := outgoing{from: r.from, kind: kindError, to: []string{to}, payload: r.payload}
	if trigger != "" {
		o.correlation = []string{trigger}
	}
	return o
}
