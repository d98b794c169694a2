package a2a

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// basePath is the path of both interfaces: JSON-RPC at the path itself, HTTP+JSON below it.
const basePath = "/a2a/v1"

const (
	cardCaching = "public, max-age=300" // of the card and its keys (A2A-1)
	blockFor    = 25 * time.Second      // how long a blocking call waits (A2A-D1)
	checkEvery  = 5 * time.Second       // how often a waiter reads its task even if nobody woke it
)

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
	e.POST(basePath, b.serveRPC, b.Guard)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		e.Add(method, basePath+"/*", b.serveREST, b.Guard) // serveREST parses the rest, because a colon in a route of echo begins a parameter
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
	httpapi.ServeDocument(c, echo.MIMEApplicationJSON, cardCaching, card.JSON())
	return nil
}

func (b *Bridge) serveRPC(c echo.Context) error {
	read := func(body []byte) (message.Call, *message.Error) {
		return message.ReadRPC(body, message.VersionOf(c.Request()))
	}
	return b.serve(c, message.Call{Binding: message.JSONRPC}, read)
}

func (b *Bridge) serveREST(c echo.Context) error {
	r := c.Request()
	read := func(body []byte) (message.Call, *message.Error) {
		return message.ReadREST(r.Method, strings.TrimPrefix(r.URL.EscapedPath(), basePath), r.URL.Query(), body, message.VersionOf(r))
	}
	return b.serve(c, message.Call{Binding: message.HTTPJSON}, read)
}

// serve answers a request: it checks the limit of the caller's address and the token, reads the body, and makes the
// call. Before read has returned the call, call has only the binding, which a refusal needs.
func (b *Bridge) serve(c echo.Context, call message.Call, read func([]byte) (message.Call, *message.Error)) error {
	httpapi.Private(c)
	from, err := b.authenticate(c)
	if err != nil {
		return b.refuse(c, call, message.FromMesh(err))
	}
	body, err := readBody(c)
	if err != nil {
		return b.refuse(c, call, message.FromMesh(err))
	}
	call, e := read(body)
	if e != nil {
		return b.refuse(c, call, e)
	}
	if own, _ := b.cfg.Mesh.Identity(); call.Tenant != "" && call.Tenant != string(own.ID) {
		return b.refuse(c, call, message.ErrTaskNotFound.At("no such tenant"))
	}
	named := message.ExtensionsIn(c.Request().Header)
	if from.supportsMesh = slices.Contains(named, message.Extension); from.supportsMesh {
		c.Response().Header().Set(message.HeaderExtensions, message.Extension)
	}
	if err := httpapi.KeepOpen(c, blockFor+15*time.Second); err != nil { // the wait, and time to answer
		return err
	}
	if call.Streams() {
		return b.serveStream(c, call, from)
	}
	result, err := b.handle(c.Request().Context(), call, from)
	if err != nil {
		return b.refuse(c, call, message.FromMesh(err))
	}
	return c.Blob(http.StatusOK, call.MediaType(http.StatusOK), call.Answer(result))
}

// authenticate finds the caller by its bearer token. Wrong tokens count against the address (AM-43).
func (b *Bridge) authenticate(c echo.Context) (caller, error) {
	ctx := c.Request().Context()
	if err := b.cfg.Addresses.Check(c); err != nil {
		return caller{}, err
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
	from.sources = b.cfg.Addresses.Sources(c)
	return from, err
}

func readBody(c echo.Context) ([]byte, error) {
	message.AcceptMediaType(c.Request().Header)
	body, err := httpapi.Body(c, message.MaxBody)
	if errors.Is(err, wire.ErrSyntax) {
		err = message.ErrParse.Because(err)
	}
	return body, err
}

func (b *Bridge) refuse(c echo.Context, call message.Call, e *message.Error) error {
	b.log.DebugContext(c.Request().Context(), "a2a: refused", "method", call.Method, "reason", e.Reason, "cause", e.Unwrap())
	e.SetHeader(c.Response().Header())
	status, body := call.Refuse(e)
	return c.Blob(status, call.MediaType(status), body)
}

func (b *Bridge) handle(ctx context.Context, call message.Call, from caller) (wire.Value, error) {
	if call.Method == message.SendMessage {
		return b.handleSend(ctx, call, from)
	}
	if err := b.checkNotBlocked(ctx, from.address.String()); err != nil {
		return wire.Value{}, err
	}
	switch call.Method {
	case message.GetExtendedCard:
		if !b.cfg.hasExtendedCard() {
			return wire.Value{}, message.ErrUnsupported.At("there is no extended card")
		}
		return b.card(extendedCard)
	case message.ListTasks:
		return b.handleList(ctx, call, from)
	case message.CreatePush, message.GetPush, message.ListPush, message.DeletePush:
		return b.handlePush(ctx, call, from)
	}
	t, err := b.taskIn(ctx, call, from, "id")
	if err != nil {
		return wire.Value{}, err
	}
	history, e := call.HistoryLength()
	if e != nil {
		return wire.Value{}, e
	}
	if call.Method == message.CancelTask {
		if t, err = b.cancel(ctx, from, t); err != nil {
			return wire.Value{}, err
		}
	}
	task, err := b.view(ctx, t, history)
	return task.Value(), err
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

// acceptCall accepts the message of a call. It returns the task and the wanted length of its history (-1: all).
func (b *Bridge) acceptCall(ctx context.Context, call message.Call, from caller) (t *taskRow, history int, err error) {
	m, e := message.ReadMessage(call.Params)
	if e != nil {
		return nil, 0, e
	}
	options, _ := call.Params.Get("configuration")
	if history, e = (message.Call{Params: options}).HistoryLength(); e != nil {
		return nil, 0, e
	}
	var push *pushRow
	if config, ok := options.Get("taskPushNotificationConfig"); ok && !config.IsNull() {
		if push, err = b.readPush(config, from); err != nil {
			return nil, 0, err
		}
	}
	t, err = b.accept(ctx, from, m, push)
	return t, history, err
}

// awaitTask waits up to 25 s until a task has ended or asks its caller something (A2A-9, A2A-D1). It does not wait if
// too many callers are waiting already.
func (b *Bridge) awaitTask(ctx context.Context, t *taskRow, from caller) (*taskRow, error) {
	w, ok := b.hub.enter(t.ID, from)
	if !ok {
		return t, nil
	}
	defer b.hub.leave(w)
	waitCtx, cancel := context.WithTimeout(ctx, b.blockFor)
	defer cancel()
	for {
		var err error
		if t, err = b.findTask(context.WithoutCancel(ctx), t.Address, t.ID); err != nil || t.endedOrAsks() || waitCtx.Err() != nil {
			return t, err
		}
		select {
		case <-w.changed:
		case <-time.After(checkEvery):
		case <-waitCtx.Done():
		}
	}
}

func (b *Bridge) handleSend(ctx context.Context, call message.Call, from caller) (wire.Value, error) {
	t, history, err := b.acceptCall(ctx, call, from)
	if err == nil && call.Blocks() {
		t, err = b.awaitTask(ctx, t, from)
	}
	if err == nil { // the owner may have blocked the caller during the wait
		err = b.checkNotBlocked(ctx, from.address.String())
	}
	if err != nil {
		return wire.Value{}, err
	}
	task, err := b.view(ctx, t, history)
	return task.TaskResult(), err
}
