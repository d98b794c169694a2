package a2arelay

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func pathAgent(c echo.Context) wire.AgentID { return wire.AgentID(c.Param("id")) }

func (s *Service) serveRPC(c echo.Context) error {
	return s.serve(c, message.JSONRPC, func(body []byte) (message.Call, *message.Error) {
		return message.ReadRPC(body, message.VersionOf(c.Request()))
	})
}

// serveREST serves the documents of an agent, and the HTTP+JSON binding below its URL.
func (s *Service) serveREST(c echo.Context) error {
	r := c.Request()
	path := strings.TrimPrefix(r.URL.EscapedPath(), pathPrefix+c.Param("id"))
	switch {
	case r.Method != http.MethodGet:
	case path == message.PathCard, path == message.PathOldCard:
		return s.getDocument(c, s.storedCard)
	case path == message.PathKeys:
		return s.getDocument(c, s.keySet)
	}
	return s.serve(c, message.HTTPJSON, func(body []byte) (message.Call, *message.Error) {
		return message.ReadREST(r.Method, path, r.URL.Query(), body, message.VersionOf(r))
	})
}

// getDocument answers with the JSON document that load returns for the agent.
func (s *Service) getDocument(c echo.Context, load func(context.Context, wire.AgentID) ([]byte, error)) error {
	if err := s.cfg.Addresses.Check(c); err != nil {
		return err
	}
	data, err := load(c.Request().Context(), pathAgent(c))
	if err != nil {
		return err
	}
	httpapi.ServeDocument(c, echo.MIMEApplicationJSON, "public, max-age=300", data)
	return nil
}

// storedCard returns the A2A card that an agent has published here.
func (s *Service) storedCard(ctx context.Context, id wire.AgentID) ([]byte, error) {
	if _, _, err := s.cfg.Agent(ctx, id); err != nil {
		return nil, err
	}
	rec, err := s.cfg.Records.Get(ctx, nsCards, string(id), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil, wire.ErrNoAgent
	}
	return rec.Body, err
}

// keySet returns the key that signs the A2A card of an agent, from its agent card (A2A-D5).
func (s *Service) keySet(ctx context.Context, id wire.AgentID) ([]byte, error) {
	card, _, err := s.cfg.Agent(ctx, id)
	if err != nil {
		return nil, err
	}
	key, err := s.cfg.ParseKey(card.PublicKey)
	if err != nil {
		return nil, err
	}
	return message.KeySet(key).JSON(), nil
}

// putCard stores the A2A card of an agent, which then takes calls here. The interface that [message.FindInterface]
// returns for the card must be at this relay.
func (s *Service) putCard(c echo.Context) error {
	httpapi.Private(c)
	ctx, id := c.Request().Context(), pathAgent(c)
	body, err := httpapi.Body(c, maxCard)
	if err != nil {
		return err
	}
	bearer, _ := httpapi.Bearer(c.Request())
	if bearer == "" {
		return wire.ErrNoBearer
	}
	_, held, err := s.cfg.Agent(ctx, id)
	switch {
	case err != nil:
		return err
	case !credential.HashOf(bearer).Equal(held.Owner):
		s.cfg.Addresses.Fault(ctx, httpapi.ClientAddr(c))
		return wire.ErrWrongBearer
	}
	card, err := message.ReadCard(body)
	if err != nil {
		return wire.ErrSyntax.Because(err)
	}
	if first, ok := message.FindInterface(card); !ok || first.URL != s.url(id) {
		return wire.ErrCard.At("the first interface of the A2A card must be the agent's URL at this relay")
	}
	now := time.Now()
	err = s.cfg.Records.Apply(ctx, []store.Change{{IfRev: store.Any, Record: store.Record{NS: nsCards, Key: string(id), Body: body, Expires: now.Add(cardLife)}}}, now)
	if err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

// serve answers a call, which parse reads from the body of the request.
func (s *Service) serve(c echo.Context, binding message.Binding, parse func([]byte) (message.Call, *message.Error)) error {
	httpapi.Private(c)
	call := message.Call{Binding: binding}
	err := s.cfg.Addresses.Check(c)
	if err == nil {
		err = s.cfg.CheckBan(c.Request().Context(), httpapi.ClientAddr(c))
	}
	if err == nil {
		_, err = s.storedCard(c.Request().Context(), pathAgent(c))
	}
	if errors.Is(err, wire.ErrNoAgent) {
		return refuse(c, call, message.ErrTaskNotFound.At("no such agent"))
	}
	if err != nil {
		return refuse(c, call, message.FromMesh(err))
	}
	body, err := readBody(c)
	if err != nil {
		return refuse(c, call, message.FromMesh(err))
	}
	call, e := parse(body)
	if e != nil {
		return refuse(c, call, e)
	}
	if call.Tenant != "" && call.Tenant != string(pathAgent(c)) {
		return refuse(c, call, message.ErrTaskNotFound.At("no such tenant"))
	}
	from, err := s.callerOf(c)
	if err == nil {
		err = httpapi.KeepOpen(c, blockFor+15*time.Second)
	}
	if err != nil {
		return refuse(c, call, message.FromMesh(err))
	}
	if call.Streams() {
		err = s.stream(c, call, from)
	} else {
		var result wire.Value
		if result, err = s.handle(c, call, from); err == nil {
			return c.Blob(http.StatusOK, call.MediaType(http.StatusOK), call.Answer(result))
		}
	}
	if err != nil {
		return refuse(c, call, message.FromMesh(err))
	}
	return nil
}

// callerOf returns the caller of a request. Its sources are HMACs, so that they do not reveal addresses.
func (s *Service) callerOf(c echo.Context) (caller, error) {
	var from caller
	if bearer, ok := httpapi.Bearer(c.Request()); ok && bearer != "" {
		from.token = credential.HashOf(bearer).String()
	}
	list := s.cfg.Addresses.Sources(c)
	if len(list) == 0 {
		list = []rate.Source{{Key: "unknown"}}
	}
	list = slices.DeleteFunc(list, func(s rate.Source) bool { return s.Width > 4 }) // a provider's network says little about a caller
	for i, source := range list {
		name, err := s.macOf(c.Request().Context(), "source", source.Key)
		if err != nil {
			return caller{}, err
		}
		if id := wire.AgentID("a2a:" + name); i == 0 {
			from.source = id
		} else {
			from.networks = append(from.networks, id)
		}
	}
	return from, nil
}

func readBody(c echo.Context) ([]byte, error) {
	message.AcceptMediaType(c.Request().Header)
	return httpapi.Body(c, message.MaxBody)
}

func refuse(c echo.Context, call message.Call, e *message.Error) error {
	e.SetHeader(c.Response().Header())
	status, body := call.Refuse(e)
	return c.Blob(status, call.MediaType(status), body)
}

// handle carries out a call that has a single answer.
func (s *Service) handle(c echo.Context, call message.Call, from caller) (wire.Value, error) {
	ctx, agent := c.Request().Context(), pathAgent(c)
	switch call.Method {
	case message.SendMessage:
		m, id, err := s.readMessage(ctx, agent, call, from)
		if err != nil {
			return wire.Value{}, err
		}
		t, err := s.send(ctx, agent, m, from, id, message.ExtensionsIn(c.Request().Header))
		if err == nil && call.Blocks() {
			t, err = s.await(ctx, t, from, func(t *taskRow) bool { return isAgentDone(t.State) || t.isOverdue(time.Now()) })
		}
		if err != nil {
			return wire.Value{}, err
		}
		if e := t.refusal(); e != nil && call.Blocks() {
			return wire.Value{}, e
		}
		return wire.Obj(wire.Field("task", t.view(time.Now()))), nil
	case message.GetTask, message.CancelTask:
		id, e := call.IDOf("id")
		if e != nil {
			return wire.Value{}, e
		}
		t, err := s.find(ctx, agent, from, id)
		if err == nil && call.Method == message.CancelTask {
			t, err = s.cancel(ctx, t, from)
		}
		if err != nil {
			return wire.Value{}, err
		}
		return t.view(time.Now()), nil
	case message.CreatePush, message.GetPush, message.ListPush, message.DeletePush:
		return wire.Value{}, message.ErrPushUnsupported
	}
	return wire.Value{}, message.ErrUnsupported.At("this agent is behind a relay")
}

// refusal returns the error with which the agent refused the caller's last message, or nil.
func (t *taskRow) refusal() *message.Error {
	if i := slices.IndexFunc(message.Errors(), func(e *message.Error) bool { return t.Reason != "" && e.Reason == t.Reason }); i >= 0 {
		return message.Errors()[i]
	}
	return nil
}

// await waits until done reports true for a task, but no longer than blockFor, and returns the task. If too many
// callers already wait, it returns at once.
func (s *Service) await(ctx context.Context, t *taskRow, from caller, done func(*taskRow) bool) (*taskRow, error) {
	w := s.hub.enter(t.ID, from)
	if w == nil {
		return t, nil
	}
	defer s.hub.leave(w)
	end := time.After(blockFor)
	for {
		var err error
		if t, err = s.load(ctx, t.ID); err != nil || done(t) {
			return t, err
		}
		select {
		case <-w.wake:
		case <-time.After(checkEvery):
		case <-end:
			return t, nil
		case <-ctx.Done():
			return t, nil
		}
	}
}

// stream answers with events: the task, then its changes until the task has ended (A2A-12). The stream of a message
// also ends when the agent asks its caller a question.
func (s *Service) stream(c echo.Context, call message.Call, from caller) error {
	ctx, agent := c.Request().Context(), pathAgent(c)
	var m message.Message
	id, err := "", error(nil)
	if call.Method == message.SendStreaming {
		m, id, err = s.readMessage(ctx, agent, call, from)
	} else if taskID, e := call.IDOf("id"); e != nil {
		err = e
	} else {
		id = taskID
	}
	if err != nil {
		return err
	}
	w := s.hub.enter(id, from) // before the message is stored, because a refusal means that it was not
	if w == nil {
		return message.ErrBusy.At("too many open streams")
	}
	defer s.hub.leave(w)
	var t *taskRow
	if call.Method == message.SendStreaming {
		t, err = s.send(ctx, agent, m, from, id, message.ExtensionsIn(c.Request().Header))
	} else if t, err = s.find(ctx, agent, from, id); err == nil && t.hasEnded(time.Now()) {
		err = message.ErrUnsupported.At("the task has ended")
	}
	if err != nil {
		return err
	}
	out := httpapi.NewEventStream(c)
	send := func(event wire.Value) error { return out.Send(httpapi.StreamEvent{Data: string(call.Answer(event))}) }
	now := time.Now()
	if send(wire.Obj(wire.Field("task", t.view(now)))) != nil {
		return nil // the client has gone
	}
	shown, ended, end, beat := t, t.hasEnded(now), time.NewTimer(streamFor), now
	defer end.Stop()
	for !ended && (call.Method == message.SubscribeToTask || !isAgentDone(shown.State)) {
		select {
		case <-ctx.Done():
			return nil
		case <-end.C:
			return nil
		case <-w.wake:
		case <-time.After(checkEvery):
		}
		if t, err = s.load(ctx, t.ID); err != nil {
			return nil // the stream has begun; the client asks again
		}
		now = time.Now()
		ended = t.hasEnded(now)
		if ended || t.rev != shown.rev {
			for _, event := range eventsOf(t.ID, t.Context, t.view(now)) {
				if send(event) != nil {
					return nil
				}
			}
			shown = t
		} else if now.Sub(beat) >= httpapi.StreamBeat {
			if beat = now; out.Beat() != nil {
				return nil
			}
		}
	}
	return nil
}

// eventsOf returns the events that show a task: one for each artifact, then one for the status.
func eventsOf(id, contextID string, task wire.Value) []wire.Value {
	ids := []wire.Member{wire.TextField("taskId", id), wire.TextField("contextId", contextID)}
	var events []wire.Value
	list, _ := task.Get("artifacts")
	for artifact := range list.Elems() {
		update := wire.Obj(append(slices.Clone(ids), wire.Field("artifact", artifact), wire.Field("lastChunk", wire.Bool(true)))...)
		events = append(events, wire.Obj(wire.Field("artifactUpdate", update)))
	}
	status, _ := task.Get("status")
	return append(events, wire.Obj(wire.Field("statusUpdate", wire.Obj(append(slices.Clone(ids), wire.Field("status", status))...))))
}
