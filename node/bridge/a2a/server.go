package a2a

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// basePath is the path of both interfaces: JSON-RPC at the path itself, HTTP+JSON below it.
const basePath = "/a2a/v1"

const cardCaching = "public, max-age=300" // of the card and its keys (A2A-1)

// Mount adds the card, its keys and both bindings, if the node serves A2A.
func (b *Bridge) Mount(e *echo.Echo) {
	get := []string{http.MethodGet, http.MethodHead}
	for _, path := range []string{message.PathCard, message.PathOldCard} {
		e.Match(get, path, b.serveCard, b.Guard, httpapi.AnyOrigin)
	}
	e.Match(get, message.PathKeys, func(c echo.Context) error {
		_, key := b.cfg.Mesh.Identity()
		httpapi.ServeDocument(c, echo.MIMEApplicationJSON, cardCaching, message.KeySet(key.Public()).JSON())
		return nil
	}, b.Guard, httpapi.AnyOrigin)
	serve := func(c echo.Context) error { return b.front.Serve(c, basePath) }
	e.POST(basePath, serve, b.Guard)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		e.Add(method, basePath+"/*", serve, b.Guard) // the door parses the rest, because a colon in a route of echo begins a parameter
	}
}

// Values of the parameter extended of [Bridge.card].
const (
	publicCard   = false
	extendedCard = true
)

// card returns the signed agent card. The extended card, for callers with a token, also names the intents as skills.
func (b *Bridge) card(extended bool) (wire.Value, error) {
	own, key := b.cfg.Mesh.Identity()
	if extended {
		for _, intent := range own.Intents {
			own.Capabilities = append(slices.Clip(own.Capabilities), string(intent))
		}
	}
	tree, err := message.Tree(message.NewCard(message.CardInfo{
		Card: own, URL: cmp.Or(b.cfg.Relay, b.cfg.URL+basePath), Directory: b.cfg.Directory, Version: b.cfg.Version, NeedsToken: !b.cfg.Anonymous,
		Streaming: true, Push: b.cfg.Relay == "", Extended: b.cfg.hasExtendedCard(),
	}))
	if err != nil {
		return tree, err
	}
	return message.SignCard(tree, key, cmp.Or(b.cfg.Relay, b.cfg.URL)+message.PathKeys)
}

// hasExtendedCard reports whether the node has an extended card. It has none if others reach it through a relay, or if
// callers need no token.
func (c Config) hasExtendedCard() bool { return c.Relay == "" && !c.Anonymous }

func (b *Bridge) serveCard(c echo.Context) error {
	card, err := b.card(publicCard)
	if err != nil {
		return err
	}
	if c.Path() == message.PathOldCard {
		card = message.OldCard(card)
	}
	httpapi.ServeDocument(c, echo.MIMEApplicationJSON, cardCaching, card.JSON())
	return nil
}

// open finds the caller of a request by its bearer token. Wrong tokens count against the address (AM-43).
func (b *Bridge) open(c echo.Context) (door.Caller, error) {
	ctx := c.Request().Context()
	if err := b.cfg.Addresses.Check(c); err != nil {
		return door.Caller{}, err
	}
	hash := ""
	bearer, hasToken := httpapi.Bearer(c.Request())
	if hasToken {
		hash = credential.HashOf(bearer).String()
	}
	from, err := b.identify(ctx, hash)
	if hasToken && errors.Is(err, message.ErrUnauthenticated) {
		b.cfg.Addresses.Fault(ctx, httpapi.ClientAddr(c))
	}
	if err != nil {
		return door.Caller{}, err
	}
	from.sources = b.cfg.Addresses.Sources(c)
	from.supportsMesh = slices.Contains(message.ExtensionsIn(c.Request().Header), message.Extension)
	own, _ := b.cfg.Mesh.Identity()
	return door.Caller{Tasks: session{b, from}, Tenant: string(own.ID), Shares: from.shares()}, nil
}

// Bounds of the callers that wait at the same time, on a stream or for an answer.
const (
	maxWaiters      = 256
	maxAnonymous    = 128 // of all callers without a token
	maxWaitersOfOne = 16  // of one caller, or of the callers without a token at one network address
)

// shares returns the caller's shares of the places of those who wait (AM-42). Callers without a token are counted by
// network address.
func (c caller) shares() []door.Share {
	all := door.Share{Max: maxWaiters}
	if c.name != anonymous {
		return []door.Share{{Key: "caller " + c.name, Max: maxWaitersOfOne}, all}
	}
	source := "unknown"
	if len(c.sources) > 0 {
		source = c.sources[0].Key
	}
	return []door.Share{{Key: "at " + source, Max: maxWaitersOfOne}, {Key: anonymous, Max: maxAnonymous, Fair: true}, all}
}

// session implements [door.Tasks] for one caller.
type session struct {
	b    *Bridge
	from caller
}

// taskOf returns a row as the door knows it.
func taskOf(t *taskRow, err error) (door.Task, error) {
	if err != nil {
		return door.Task{}, err
	}
	return door.Task{ID: t.ID, State: t.last().State, At: t.last().At, Direct: t.last().Direct, Row: t}, nil
}

func rowOf(t door.Task) *taskRow { return t.Row.(*taskRow) }

// check returns an error for a caller that the owner has blocked, as if none of its tasks existed.
func (s session) check(ctx context.Context) error {
	return s.b.checkNotBlocked(ctx, s.from.address.String())
}

// Find implements [door.Tasks].
func (s session) Find(ctx context.Context, id string) (door.Task, error) {
	if err := s.check(ctx); err != nil {
		return door.Task{}, err
	}
	return taskOf(s.b.findTask(ctx, s.from.address.String(), id))
}

// Send implements [door.Tasks].
func (s session) Send(ctx context.Context, call message.Call, m message.Message) (door.Task, error) {
	options, _ := call.Params.Get("configuration")
	var push *pushRow
	if config, ok := options.Get("taskPushNotificationConfig"); ok && !config.IsNull() {
		var err error
		if push, err = s.b.readPush(call, config, s.from); err != nil {
			return door.Task{}, err
		}
	}
	return taskOf(s.b.accept(ctx, s.from, m, push))
}

// Cancel implements [door.Tasks].
func (s session) Cancel(ctx context.Context, t door.Task) (door.Task, error) {
	return taskOf(s.b.cancel(ctx, s.from, rowOf(t)))
}

// List implements [door.Tasks].
func (s session) List(ctx context.Context, contextID string) ([]door.Task, error) {
	address := s.from.address.String()
	term := callerTerm(address)
	if contextID != "" {
		term = contextTerm(address, contextID)
	}
	rows, err := s.b.tasksWith(ctx, term)
	if err == nil {
		err = s.check(ctx)
	}
	var list []door.Task
	for _, row := range rows {
		t, _ := taskOf(row, nil)
		list = append(list, t)
	}
	return list, err
}

// Show implements [door.Tasks].
func (s session) Show(ctx context.Context, history int, tasks ...door.Task) ([]wire.Value, error) {
	var rows []*taskRow
	for _, t := range tasks {
		rows = append(rows, rowOf(t))
	}
	known := contents{}
	if err := known.add(ctx, s.b.cfg.Store.Steps(), history, rows...); err != nil {
		return nil, err
	}
	var list []wire.Value
	for _, row := range rows {
		v, err := s.b.view(ctx, row, history, known)
		if err != nil {
			return nil, err
		}
		list = append(list, v.Value())
	}
	return list, nil
}

// Since implements [door.Tasks].
func (s session) Since(ctx context.Context, seen, now door.Task) ([]wire.Value, error) {
	if !now.At.After(seen.At) {
		return nil, nil
	}
	states, err := s.b.views(ctx, rowOf(now), noHistory, contents{})
	var events []wire.Value
	for _, v := range states {
		if !v.task.At.After(seen.At) {
			continue
		}
		v.task.Artifacts = v.artifacts
		events = append(events, door.Events(v.task.Value())...)
	}
	return events, err
}

// Do implements [door.Tasks].
func (s session) Do(ctx context.Context, call message.Call) (wire.Value, error) {
	if err := s.check(ctx); err != nil {
		return wire.Value{}, err
	}
	if call.Method != message.GetExtendedCard {
		return s.b.handlePush(ctx, call, s.from)
	}
	if !s.b.cfg.hasExtendedCard() {
		return wire.Value{}, message.ErrUnsupported.At("there is no extended card")
	}
	return s.b.card(extendedCard)
}

// checkNotBlocked returns an error for a caller that the owner has blocked, as if none of its tasks existed.
func (b *Bridge) checkNotBlocked(ctx context.Context, address string) error {
	standing, err := b.cfg.Mesh.Standing(ctx, address, time.Now())
	if err == nil && standing == acl.Blocked {
		err = message.ErrTaskNotFound
	}
	return err
}

// taskIn returns the task whose id is in the given member of the call's parameters.
func (b *Bridge) taskIn(ctx context.Context, call message.Call, from caller, member string) (*taskRow, error) {
	id, e := call.IDOf(member)
	if e != nil {
		return nil, e
	}
	return b.findTask(ctx, from.address.String(), id)
}
