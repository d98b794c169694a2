package moltspeak

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/websocket"
	"github.com/agentmesh/agentmesh/node/wire"
)

// answerTime is the longest time that a handler may take to answer a message. A batch gets twice as long.
const answerTime = 60 * time.Second

// Mount adds the endpoint (MS-44) and the registry, if they are switched on.
func (b *Bridge) Mount(e *echo.Echo) {
	g := e.Group("/moltspeak/v0.1", b.Guard, b.guard)
	g.POST("/message", b.serveMessage)
	g.POST("/batch", b.serveBatch)
	g.GET("/stream", b.serveWebSocket)
	if b.registry != nil {
		b.registry.Mount(e)
	}
}

// readBody reads the body of a request. The error is a refusal for the caller, for example of a body over limit bytes.
func readBody(c echo.Context, limit int) ([]byte, *message.Error) {
	raw, err := httpapi.Body(c, limit)
	if err == nil {
		return raw, nil
	}
	e := message.Fail(message.CodeParse).Because(err)
	if w, ok := errors.AsType[*wire.Error](err); ok && w.Status != http.StatusBadRequest {
		e = message.Fail(message.CodeSchema).Because(err)
		e.Status = w.Status
	}
	return nil, e
}

func (b *Bridge) respondError(c echo.Context, e *message.Error) error {
	return respond(c, b.refuse(&request{ctx: c.Request().Context(), now: time.Now()}, e))
}

func respond(c echo.Context, r Response) error {
	if r.Delay > 0 {
		c.Response().Header().Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(r.Delay), 10))
	}
	httpapi.Private(c)
	return httpapi.Raw(c, r.Status, r.Body)
}

func (b *Bridge) serveMessage(c echo.Context) error {
	raw, e := readBody(c, message.MaxMessage+message.MaxWrapping)
	if e != nil {
		return b.respondError(c, e)
	}
	if err := httpapi.KeepOpen(c, answerTime); err != nil {
		return err
	}
	r := b.Receive(c.Request().Context(), raw, b.cfg.Addresses.Sources(c), nil)
	countForgery(c, b.cfg.Addresses, r)
	return respond(c, r)
}

// serveBatch answers each entry in order. An entry that fails does not stop the rest (MS-46). The handler has twice
// answerTime. It refuses an entry that it reaches after answerTime, because all answers would be lost if that entry
// took too long.
func (b *Bridge) serveBatch(c echo.Context) error {
	raw, e := readBody(c, message.MaxBatch)
	if e != nil {
		return b.respondError(c, e)
	}
	if err := httpapi.KeepOpen(c, 2*answerTime); err != nil {
		return err
	}
	entries, e := message.ReadBatch(raw)
	if e != nil {
		return b.respondError(c, e)
	}
	out, deadline := make([]json.RawMessage, len(entries)), time.Now().Add(answerTime)
	for i, entry := range entries {
		data := entry.JSON()
		x := &request{ctx: c.Request().Context(), now: time.Now(), sources: b.cfg.Addresses.Sources(c)}
		var limitErr *message.Error
		switch {
		case x.now.After(deadline):
			limitErr = message.Fail(message.CodeTimeout)
		case i > 0: // the request itself paid for the first entry
			limitErr = charge(c, b.cfg.Addresses)
		}
		key := b.cfg.Box
		if limitErr != nil {
			key = nil // do not decrypt it; an entry that is not encrypted still has its id in the error
		}
		var e *message.Error
		x.packet, e = message.OpenPacket(entry, len(data), key)
		var r Response
		if e = cmp.Or(limitErr, e); e != nil {
			r = b.refuse(x, e)
		} else {
			r = b.receive(x)
		}
		countForgery(c, b.cfg.Addresses, r)
		out[i] = r.Body
	}
	return httpapi.JSON(c, http.StatusOK, out)
}

// guard charges every request to the caller's address.
func (b *Bridge) guard(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if e := charge(c, b.cfg.Addresses); e != nil {
			return b.respondError(c, e)
		}
		return next(c)
	}
}

// charge takes a message from the allowance of the caller's address, so that batches and frames cost as much as
// single requests (AM-43).
func charge(c echo.Context, addresses *httpapi.Addresses) *message.Error {
	err := addresses.Check(c)
	if err == nil {
		return nil
	}
	e := message.Fail(message.CodeRateLimit)
	if w, ok := errors.AsType[*wire.Error](err); ok {
		e.Delay = w.RetryAfter
	}
	return e
}

// countForgery counts a forged request against the caller's address. Ten of them in a minute bring a penalty (AM-43).
func countForgery(c echo.Context, addresses *httpapi.Addresses, r Response) {
	if r.Forged {
		addresses.Fault(c.Request().Context(), httpapi.ClientAddr(c))
	}
}

// serveWebSocket serves the WebSocket: one JSON text per frame, the first of them a valid hello (MS-47).
func (b *Bridge) serveWebSocket(c echo.Context) error {
	if !websocket.IsUpgrade(c.Request()) {
		e := message.FailAt(message.CodeSchema, "", "this route is a WebSocket")
		e.Status = http.StatusUpgradeRequired
		return b.respondError(c, e)
	}
	conn, err := websocket.Accept(c.Response(), c.Request(), websocket.Options{
		ReadLimit: message.MaxMessage + message.MaxWrapping, QueueFrames: 256, QueueBytes: 4 << 20, Origins: b.cfg.Origins,
	})
	if err != nil {
		return nil // Accept answered
	}
	sources := b.cfg.Addresses.Sources(c)
	if !b.sockets.add(conn, sources) {
		conn.Close(websocket.CodeTryLater, "")
		_, _, _ = conn.Read() // waits for the end of the connection
		return nil
	}
	defer b.sockets.remove(conn)
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Request().Context()))
	defer cancel()
	(&connection{b: b, conn: conn, sources: sources}).serve(ctx, func() *message.Error { return charge(c, b.cfg.Addresses) }, func(r Response) { countForgery(c, b.cfg.Addresses, r) })
	return nil
}

// discover answers with cards from the directories. Only agents that speak MoltSpeak have an endpoint in the results.
// Each capability in d.Any is a search of its own. A stranger's message pays for the first search, and each further
// search costs the stranger as much as a message.
func discover(c *request, d message.Discover, directories []Directory, quotas quotas) (answer, *message.Error) {
	searches := [][]string{d.All}
	if len(d.Any) > 0 {
		searches = nil
	}
	for _, capability := range d.Any {
		searches = append(searches, append(slices.Clip(d.All), capability))
	}
	if !c.isKnown() {
		for range searches[1:] {
			if e := quotas.charge(c); e != nil {
				return answer{}, e
			}
		}
	}
	var results []wire.Value
	var lastErr error
	found := make(map[string]bool)
	for _, directory := range directories {
		for _, capabilities := range searches {
			page, err := directory.Search(c.ctx, client.Query{Capabilities: capabilities, Limit: d.Limit})
			if err != nil {
				lastErr = err
				break // the other directories may answer
			}
			for _, card := range page.Agents {
				if id := card.GetStr("agent_id"); len(results) < d.Limit && !found[id] {
					found[id] = true
					results = append(results, discoverResult(card))
				}
			}
		}
	}
	if len(results) == 0 && lastErr != nil {
		return answer{}, message.Fail(message.CodeTimeout).Because(lastErr)
	}
	data := wire.Obj(wire.Field("results", wire.Arr(results...)))
	return success(data), nil
}

// discoverResult returns a result with the public members of a card.
func discoverResult(card wire.Value) wire.Value {
	meta, _ := card.Get("metadata")
	v := wire.Obj(wire.TextField("agent_id", card.GetStr("agent_id")), wire.TextField("name", card.GetStr("name")))
	if caps, ok := card.Get("capabilities"); ok && caps.Kind() == wire.Array {
		v = v.With("capabilities", caps)
	}
	for _, m := range []struct{ from, to string }{{"moltspeak", "endpoint"}, {"moltspeak_agent", "agent"}, {"moltspeak_key", "public_key"}} {
		v = v.WithOptional(m.to, meta.GetStr(m.from))
	}
	if name, ok := message.ParseName(meta.GetStr("moltspeak_agent")); ok {
		v = v.With("org", wire.Text(name.Org))
	}
	return v
}
