package mailbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/labstack/echo/v4"
	"golang.org/x/sync/singleflight"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/directory/cursor"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/moderation"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Config configures a relay. All fields except Addresses and Metrics are required.
type Config struct {
	BaseURL string // of the directory, "https://directory.example.com/v1"
	Store   store.Store
	Shared  bool        // other processes write to the store
	Secret  *cursor.Key // authenticates relay ids
	Keys    *signing.KeyCache
	Gate    *admission.Gate
	Bans    *moderation.Bans
	// RecordConnection records that the agent of a card is connected to its mailbox, which is its endpoint proof (AM-66).
	RecordConnection func(ctx context.Context, card wire.Card) error
	ShowCard         echo.HandlerFunc   // responds with the card that the path names
	Addresses        *httpapi.Addresses // limits the clients by address; nil for no limits
	Metrics          *httpapi.Metrics
	Logger           *slog.Logger
}

// Relay stores the mail of agents without a public address and passes messages through to connected agents. It is safe
// for concurrent use.
type Relay struct {
	cfg                        Config
	records                    store.Records
	connections                *Connections
	offers                     *Offers // passes messages through in place of connections; nil if this process alone writes
	counts                     Counts
	storing                    singleflight.Group    // messages, by digest
	onMail                     func(to wire.AgentID) // set by OnMail; may be nil
	passed, stored, turnedAway *httpapi.Counter      // messages for mailboxes
}

// New returns a relay. It starts nothing.
func New(cfg Config) *Relay {
	const name, help = "relay_messages_total", "Messages for mailboxes, by outcome: passed to a connected agent, stored, or refused."
	m := cfg.Metrics
	r := &Relay{
		cfg: cfg, records: cfg.Store.Records(), connections: NewConnections(),
		passed: m.Counter(name, help, "outcome", "passed"), stored: m.Counter(name, help, "outcome", "stored"), turnedAway: m.Counter(name, help, "outcome", "refused"),
	}
	if cfg.Shared {
		r.offers = NewOffers(r.records, r.connections.Notify)
	}
	m.Gauge("relay_connected", "Owners of mailboxes whose agents are connected.", func() float64 { return float64(r.connections.Count()) })
	total := func(of func(Usage) int) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			counts, err := r.Counts(ctx)
			all, _ := counts.Total(wire.Now())
			return float64(of(all)), err
		}
	}
	m.StoreGauge("relay_waiting_messages", "Messages that wait in all mailboxes; the limit is 100000.", total(func(u Usage) int { return u.N }))
	m.StoreGauge("relay_waiting_bytes", "Bytes of the messages that wait in all mailboxes; the limit is 4 GiB.", total(func(u Usage) int { return u.Size }))
	return r
}

// OnMail sets the function that the relay calls with the recipient of each message that this or another process stores
// in a mailbox. An agent in this process then need not poll. Call OnMail during set-up only. notify must not block.
func (r *Relay) OnMail(notify func(to wire.AgentID)) { r.onMail = notify }

// Connections returns the agents that poll at this process.
func (r *Relay) Connections() *Connections { return r.connections }

// Health returns the relay's part of the health document. The status "full" is not an error: a sender who fills
// mailboxes must not take the whole process out of service.
func (r *Relay) Health(ctx context.Context) (any, error) {
	if err := r.cfg.Store.Ping(ctx); err != nil {
		return nil, err
	}
	counts, err := r.Counts(ctx)
	if err != nil {
		return nil, err
	}
	_, full := counts.Total(wire.Now())
	return struct {
		Status    string `json:"status"`
		Connected int    `json:"connected"` // owners whose agents are waiting for mail now
	}{map[bool]string{false: "ok", true: "full"}[full], r.connections.Count()}, nil
}

// posting is a message that was posted to the relay.
type posting struct {
	raw       []byte
	tree      wire.Value
	msg       wire.Message
	recipient store.Card
	sender    wire.AgentID // "" if it has no card here; otherwise its key made the signature
}

func (p posting) isVerified() bool { return p.sender != "" }

// checkPosting parses a message for the relay. It runs the checks in lines 3 to 5 of the table "Receiving" in
// docs/protocol.md and, if the sender's card is here, in lines 7 to 9 (AM-66). box is the mailbox that the request
// names; "" if only the message names its recipient.
func (r *Relay) checkPosting(ctx context.Context, raw []byte, box wire.AgentID, from netip.Addr, now time.Time) (posting, error) {
	p := posting{raw: raw}
	var err error
	if p.tree, err = wire.ParseObject(raw); err != nil {
		return p, wire.ErrSyntax.Because(err)
	}
	p.msg, err = wire.ParseMessage(p.tree)
	if field, ok := errors.AsType[*wire.FieldError](err); ok {
		return p, wire.ErrSchema.WithField(field)
	}
	if err != nil {
		return p, err
	}
	if box != "" && p.msg.To != box {
		return p, wire.ErrRecipient
	}
	if err := r.cfg.Bans.Check(ctx, p.msg.From, nil, "", from, now); err != nil {
		return p, err
	}
	if p.recipient, err = listing.Get(ctx, r.cfg.Store.Cards(), p.msg.To, now); err != nil {
		return p, err
	}
	senderCard, err := listing.Get(ctx, r.cfg.Store.Cards(), p.msg.From, now)
	if errors.Is(err, wire.ErrNoAgent) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	card, err := listing.ParseCard(senderCard)
	if err != nil {
		return p, err
	}
	key, err := r.cfg.Keys.Parse(card.PublicKey)
	if err == nil {
		err = key.Usable(now)
	}
	if err != nil {
		return p, wire.ErrUnknownSender.Because(err)
	}
	window := signing.Window{From: p.msg.Time.Add(-client.DefaultPast), To: p.msg.Time.Add(client.DefaultFuture)} // for the time in an OpenPGP signature
	if _, err := key.VerifyValue(p.tree.Without("signature"), p.msg.Signature, window, now); err != nil {
		r.cfg.Addresses.Fault(ctx, from)
		return p, wire.ErrSignature.Because(err)
	}
	if p.msg.Time.Before(now.Add(-client.DefaultPast)) || p.msg.Time.After(now.Add(client.DefaultFuture)) {
		return p, wire.ErrTimeWindow
	}
	p.sender = p.msg.From
	return p, nil
}

// Mount adds the routes of the mailbox relay (AM-64 to AM-68).
func (r *Relay) Mount(e *echo.Echo, guard func(echo.HandlerFunc) echo.HandlerFunc) {
	e.POST("/v1/relay", guard(r.postRelay))
	e.GET("/v1/relay", guard(r.getRelay))
	e.POST("/v1/relay/:relay/ack", guard(r.postAck))
	e.POST("/v1/relay/:relay/reply", guard(r.postReply))
	e.POST("/v1/mailbox/:id", guard(r.postMailbox))
	e.Match([]string{http.MethodGet, http.MethodHead}, "/v1/mailbox/:id", guard(r.getMailbox))
}

// queuedResponse is the response for a message that waits in a mailbox.
type queuedResponse struct {
	RelayID string `json:"relay_id"`
	Status  string `json:"status"`
}

// postRelay accepts a message from a sender that shows its credential (AM-64).
func (r *Relay) postRelay(c echo.Context) error {
	httpapi.Private(c)
	ctx, now := c.Request().Context(), wire.Now()
	bearer, ok := httpapi.Bearer(c.Request())
	if !ok || bearer == "" {
		return wire.ErrNoBearer
	}
	if err := r.cfg.Gate.CheckThrottleUnlessKnown(ctx, bearer, httpapi.ClientAddr(c), now); err != nil {
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
	owner := credential.HashOf(bearer)
	senderCard, err := listing.Get(ctx, r.cfg.Store.Cards(), p.msg.From, now)
	if err != nil && !errors.Is(err, wire.ErrNoAgent) {
		return err
	}
	if err != nil || !credential.Hash(senderCard.Owner).Equal(owner) {
		r.cfg.Gate.CountFailure(ctx, httpapi.ClientAddr(c), now)
		if known, err := r.cfg.Gate.IsKnown(ctx, owner, now); err != nil {
			return fmt.Errorf("look for the agents of a credential: %w", err)
		} else if !known {
			return errUnknownBearer
		}
		return wire.ErrWrongBearer
	}
	id, err := r.storeMail(ctx, p, now)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusCreated, queuedResponse{id, "queued"})
}

func (r *Relay) getRelay(c echo.Context) error {
	httpapi.Private(c)
	ctx, now := c.Request().Context(), wire.Now()
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.cfg.Gate.CheckBearer(bearer); err != nil {
		return err
	}
	if err := r.cfg.Gate.CheckThrottleUnlessKnown(ctx, bearer, httpapi.ClientAddr(c), now); err != nil {
		return err
	}
	q, err := ParseQuery(c.Request().URL.Query())
	if err != nil {
		return err
	}
	p, err := r.startPoll(ctx, bearer, q, now)
	if errors.Is(err, errUnknownBearer) {
		r.cfg.Gate.CountFailure(ctx, httpapi.ClientAddr(c), now)
	}
	if err != nil {
		return err
	}
	if !p.Waits() {
		p.Wait = 0
	}
	return httpapi.Park(c, p.Wait, p, mailPageJSON(nil))
}

// postAck removes a message that its agent has received. A repeated call succeeds.
func (r *Relay) postAck(c echo.Context) error {
	httpapi.Private(c)
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.cfg.Gate.CheckBearer(bearer); err != nil {
		return err
	}
	ctx := c.Request().Context()
	key, err := r.openRelayID(ctx, credential.HashOf(bearer), c.Param("relay"))
	if err != nil {
		return err // the message does not exist for any other credential
	}
	if err := r.deleteMail(ctx, wire.Now(), key); err != nil {
		return fmt.Errorf("acknowledge mail: %w", err)
	}
	return httpapi.JSON(c, http.StatusOK, map[string]string{"status": "acknowledged"})
}

// postReply takes an agent's reply to a message that passes through (AM-67).
func (r *Relay) postReply(c echo.Context) error {
	httpapi.Private(c)
	bearer, _ := httpapi.Bearer(c.Request())
	if err := r.cfg.Gate.CheckBearer(bearer); err != nil {
		return err
	}
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	owner, id := credential.HashOf(bearer), c.Param("relay")
	ctx, now := c.Request().Context(), wire.Now()
	if t := r.connections.Find(owner, id); t == nil {
		if _, err := r.openRelayID(ctx, owner, id); errors.Is(err, wire.ErrRoute) {
			return wire.ErrLateReply // an invented id costs no read
		}
		err = r.offers.Reply(ctx, owner, id, raw, now)
	} else {
		err = r.connections.Reply(owner, t, raw)
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, map[string]string{"status": "delivered"})
}

// getMailbox answers with the agent's card, as every endpoint does (AM-63).
func (r *Relay) getMailbox(c echo.Context) error {
	if _, _, err := r.Agent(c.Request().Context(), wire.AgentID(c.Param("id"))); err != nil {
		return err
	}
	return r.cfg.ShowCard(c)
}

// Agent returns the live card with this id, parsed and as stored. It returns [wire.ErrNoAgent] unless the endpoint of
// the card is its mailbox here.
func (r *Relay) Agent(ctx context.Context, id wire.AgentID) (wire.Card, store.Card, error) {
	held, err := listing.Get(ctx, r.cfg.Store.Cards(), id, wire.Now())
	if err != nil {
		return wire.Card{}, held, err
	}
	card, err := listing.ParseCard(held)
	if err == nil && !r.HasMailboxOf(card) {
		err = wire.ErrNoAgent
	}
	return card, held, err
}

// HasMailboxOf reports whether the endpoint of a card is its agent's mailbox in this directory.
func (r *Relay) HasMailboxOf(card wire.Card) bool {
	return card.Endpoint == r.cfg.BaseURL+"/mailbox/"+string(card.ID)
}

// postMailbox is the endpoint of an agent without a public address. A message passes through while the agent is
// connected; otherwise it waits in the mailbox (AM-66, AM-67).
func (r *Relay) postMailbox(c echo.Context) error {
	httpapi.Private(c)
	ctx, now, id := c.Request().Context(), wire.Now(), wire.AgentID(c.Param("id"))
	raw, err := httpapi.Body(c, wire.MaxMessage)
	if err != nil {
		return err
	}
	if _, _, err := r.Agent(ctx, id); err != nil {
		return err
	}
	p, err := r.checkPosting(ctx, raw, id, httpapi.ClientAddr(c), now)
	if err != nil {
		return err
	}
	if err := httpapi.KeepOpen(c, ReplyWithin+10*time.Second); err != nil {
		return err
	}
	if transitID, err := r.relayID(ctx, p.recipient.Owner, r.counts.NewKey(now)); err == nil { // otherwise storing the message fails too
		t := &Transit{ID: transitID, Sender: p.sender, Message: p.msg, Raw: p.raw, Created: now, ReplyBy: now.Add(ReplyWithin)}
		pass := r.connections.PassThrough
		if r.offers != nil {
			pass = r.offers.PassThrough
		}
		if answer, ok := pass(ctx, p.recipient.Owner, t); ok {
			r.passed.Inc()
			if answer.Status >= http.StatusBadRequest { // an agent's reply has no Retry-After
				httpapi.SetErrorHeaders(c.Response().Header(), &wire.Error{Status: answer.Status, RetryAfter: wire.ErrRateLimited.RetryAfter})
			}
			return httpapi.Raw(c, answer.Status, answer.Body)
		}
	}
	relayID, err := r.storeMail(ctx, p, now)
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusAccepted, queuedResponse{relayID, "queued"})
}
