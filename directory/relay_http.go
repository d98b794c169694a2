package directory

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/mailbox"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// mountRelay adds the routes of the mailbox relay (AM-64 to AM-68).
func (r *Registry) mountRelay(e *echo.Echo, guard func(echo.HandlerFunc) echo.HandlerFunc) {
	e.POST("/v1/relay", guard(r.postRelay))
	e.GET("/v1/relay", guard(r.getRelay))
	e.POST("/v1/relay/:relay/ack", guard(r.postAck))
	e.POST("/v1/relay/:relay/reply", guard(r.postReply))
	e.POST("/v1/mailbox/:id", guard(r.postMailbox))
	e.GET("/v1/mailbox/:id", guard(r.getMailbox))
	r.calls.Mount(e, guard)
}

// queued is the response for a message that waits in a mailbox.
type queued struct {
	RelayID string `json:"relay_id"`
	Status  string `json:"status"`
}

// postRelay accepts a message from a sender that shows its credential (AM-64).
func (r *Registry) postRelay(c echo.Context) error {
	httpapi.Private(c)
	ctx, now := c.Request().Context(), wire.Now()
	bearer, ok := httpapi.Bearer(c.Request())
	if !ok || bearer == "" {
		return wire.ErrNoBearer
	}
	if err := r.gate.CheckThrottleUnlessKnown(ctx, bearer, httpapi.ClientAddr(c), now); err != nil {
		return err
	}
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	p, err := r.checkPosting(ctx, raw, "", httpapi.ClientAddr(c), now)
	if err != nil {
		return err
	}
	sender, err := listing.Get(ctx, r.cards, p.msg.From, now)
	if errors.Is(err, wire.ErrNoAgent) {
		r.gate.CountFailure(ctx, httpapi.ClientAddr(c), now)
		return errUnknownBearer
	}
	if err != nil {
		return err
	}
	if !credential.Hash(sender.Owner).Equal(credential.HashOf(bearer)) {
		r.gate.CountFailure(ctx, httpapi.ClientAddr(c), now)
		return wire.ErrWrongBearer
	}
	id, err := r.countOutcome(r.storeMail(ctx, p, now))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusCreated, queued{id, "queued"})
}

// getRelay returns mail to the agents of a credential.
func (r *Registry) getRelay(c echo.Context) error {
	httpapi.Private(c)
	ctx, now := c.Request().Context(), wire.Now()
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.gate.CheckBearer(bearer); err != nil {
		return err
	}
	if err := r.gate.CheckThrottleUnlessKnown(ctx, bearer, httpapi.ClientAddr(c), now); err != nil {
		return err
	}
	q, err := mailbox.ParseQuery(c.Request().URL.Query())
	if err != nil {
		return err
	}
	p, err := startPoll(ctx, r, bearer, q, now)
	if errors.Is(err, errUnknownBearer) {
		r.gate.CountFailure(ctx, httpapi.ClientAddr(c), now)
	}
	if err != nil {
		return err
	}
	if !p.Waits() {
		p.Wait = 0
	}
	return httpapi.Park(c, p.Wait, p, mailPageJSON(nil))
}

// mailPageJSON encodes mail with each message byte for byte as it arrived (AM-64). The standard library would compact
// the messages.
func mailPageJSON(items []RelayItem) []byte {
	out := []byte(`{"messages":[`)
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = wire.AppendString(append(out, `{"relay_id":`...), item.RelayID)
		name := `,"message":`
		if item.Call {
			name = `,"a2a":`
		}
		out = append(append(out, name...), item.Message...)
		out = wire.AppendString(append(out, `,"created_at":`...), item.Created)
		if item.ReplyBy != "" {
			out = wire.AppendString(append(out, `,"reply_by":`...), item.ReplyBy)
		}
		out = append(out, '}')
	}
	return append(out, "]}"...)
}

// postAck removes a message that its agent has received.
func (r *Registry) postAck(c echo.Context) error {
	httpapi.Private(c)
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.gate.CheckBearer(bearer); err != nil {
		return err
	}
	if err := r.Acknowledge(c.Request().Context(), bearer, c.Param("relay")); err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Status string `json:"status"`
	}{"acknowledged"})
}

// postReply takes an agent's reply to a message that passes through (AM-67).
func (r *Registry) postReply(c echo.Context) error {
	httpapi.Private(c)
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.gate.CheckBearer(bearer); err != nil {
		return err
	}
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	owner, id := credential.HashOf(bearer), c.Param("relay")
	ctx, now := c.Request().Context(), wire.Now()
	if o := r.connections.Find(owner, id); o == nil {
		if _, err := r.openRelayID(ctx, owner, id, now); errors.Is(err, wire.ErrRoute) {
			return wire.ErrLateReply // an invented id costs no read
		}
		err = r.offers.Reply(ctx, owner, id, raw, now)
	} else {
		err = r.connections.Reply(owner, o, raw)
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Status string `json:"status"`
	}{"delivered"})
}

// getMailbox answers with the agent's card, as every endpoint does (AM-63).
func (r *Registry) getMailbox(c echo.Context) error {
	if err := r.checkMailbox(c.Request().Context(), pathID(c)); err != nil {
		return err
	}
	return r.getAgent(c)
}

// checkMailbox returns [wire.ErrNoAgent] unless the endpoint of the card of id is its mailbox here.
func (r *Registry) checkMailbox(ctx context.Context, id wire.AgentID) error {
	held, err := listing.Get(ctx, r.cards, id, wire.Now())
	if err != nil {
		return err
	}
	card, err := listing.ParseCard(held)
	if err == nil && !r.ownsMailbox(card) {
		return wire.ErrNoAgent
	}
	return err
}

// postMailbox is the endpoint of an agent without a public address. A message passes through while the agent is
// connected, and otherwise waits in the mailbox (AM-66, AM-67).
func (r *Registry) postMailbox(c echo.Context) error {
	httpapi.Private(c)
	ctx, now, id := c.Request().Context(), wire.Now(), pathID(c)
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	if err := r.checkMailbox(ctx, id); err != nil {
		return err
	}
	p, err := r.checkPosting(ctx, raw, id, httpapi.ClientAddr(c), now)
	if err != nil {
		return err
	}
	if err := httpapi.KeepOpen(c, mailbox.ReplyWithin+10*time.Second); err != nil {
		return err
	}
	if answer, ok := passThrough(ctx, r, p, now); ok {
		r.counters.passed.Inc()
		return httpapi.Raw(c, answer.Status, answer.Body)
	}
	relayID, err := r.countOutcome(r.storeMail(ctx, p, now))
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusAccepted, queued{relayID, "queued"})
}

// countOutcome counts whether a message was stored or refused. It returns its arguments.
func (r *Registry) countOutcome(relayID string, err error) (string, error) {
	if err != nil {
		r.counters.turnedAway.Inc()
	} else {
		r.counters.stored.Inc()
	}
	return relayID, err
}
