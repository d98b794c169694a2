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

func text1(key, val string) wire.Member { return wire.Member{Key: key, Value: wire.Text(val)} }

func refuse(status int, reason string, members ...wire.Member) *refusal {
	return &refusal{status: status, from: fromSystem, reason: reason, payload: wire.Obj(members...)}
}

func refuseSyntax(message string) *refusal {
	return refuse(http.StatusBadRequest, "PROCESSING_ERROR", text1("error", message), text1("code", "PROCESSING_ERROR"))
}

func refuseShape(message string) *refusal {
	return refuse(http.StatusBadRequest, "VALIDATION_ERROR", text1("error", message), text1("code", "VALIDATION_ERROR"))
}

func refuseTooLarge() *refusal {
	r := refuse(http.StatusRequestEntityTooLarge, "too_large", text1("error", "the message is too large"), text1("code", "PROCESSING_ERROR"))
	r.close = 1009
	return r
}

// refuseWith is an error with a name and a message.
func refuseWith(status int, name, message string) *refusal {
	return refuse(status, name, text1("error", name), text1("message", message))
}

func refuseReserved(kind string) *refusal {
	return refuseWith(http.StatusBadRequest, "invalid_request", printable(kind, maxKind)+" is reserved for the gateway. Participants cannot send it")
}

func refuseCapability(id, kind string, held wire.Value) *refusal {
	r := refuse(http.StatusForbidden, "capability_violation",
		text1("error", "capability_violation"), text1("attempted_kind", kind), wire.Member{Key: "your_capabilities", Value: held})
	r.body = wire.Obj(text1("error", "capability_violation"),
		text1("message", "Participant "+id+" lacks capability for "+printable(kind, maxKind)))
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
	r := refuse(http.StatusForbidden, "unauthorized_stream_write", text1("error", "unauthorized_stream_write"),
		text1("stream_id", stream), text1("message", "You are not authorized to write to this stream"))
	r.from = fromStream
	return r
}

func refuseTargets(missing []string) *refusal {
	r := refuse(http.StatusBadRequest, "target_not_found", text1("error", "target_not_found"),
		wire.Member{Key: "targets", Value: wire.Texts(missing)}, text1("message", "A target of the stream is not in the space"))
	r.whole = true
	return r
}

func refusePaused(until time.Time) *refusal {
	end := wire.Value{}
	if !until.IsZero() {
		end = wire.Text(stamp(until))
	}
	return refuse(http.StatusForbidden, "participant_paused", text1("error", "participant_paused"), wire.Member{Key: "until", Value: end})
}

func refuseName(status int, name string) *refusal { return refuse(status, name, text1("error", name)) }

func refuseRate(wait time.Duration) *refusal {
	seconds := int64(wait.Round(time.Second).Seconds())
	return refuse(http.StatusTooManyRequests, "rate_limited", text1("error", "rate_limited"),
		wire.Member{Key: "retry_after", Value: wire.Int(max(seconds, 1))})
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
