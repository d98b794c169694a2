package a2arelay

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/door"
	"github.com/agentmesh/agentmesh/node/bridge/a2a/message"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func pathAgent(c echo.Context) wire.AgentID { return wire.AgentID(c.Param("id")) }

// serve serves the documents of an agent, and A2A at and below its URL.
func (s *Service) serve(c echo.Context) error {
	r, base := c.Request(), pathPrefix+c.Param("id")
	switch path := strings.TrimPrefix(r.URL.EscapedPath(), base); {
	case r.Method != http.MethodGet:
	case path == message.PathCard:
		return s.getDocument(c, s.storedCard)
	case path == message.PathOldCard:
		return s.getDocument(c, s.oldCard)
	case path == message.PathKeys:
		return s.getDocument(c, s.keySet)
	}
	return s.front.Serve(c, base)
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

// oldCard returns the card of an agent in the form of A2A 0.3.
func (s *Service) oldCard(ctx context.Context, id wire.AgentID) ([]byte, error) {
	data, err := s.storedCard(ctx, id)
	if err != nil {
		return nil, err
	}
	card, err := message.ReadCard(data)
	return message.OldCard(card).JSON(), err
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

// open finds out who makes a call, and whether the agent takes calls here.
func (s *Service) open(c echo.Context) (door.Caller, error) {
	ctx, agent := c.Request().Context(), pathAgent(c)
	err := s.cfg.Addresses.Check(c)
	if err == nil {
		err = s.cfg.CheckBan(ctx, httpapi.ClientAddr(c))
	}
	if err == nil {
		_, err = s.storedCard(ctx, agent)
	}
	if errors.Is(err, wire.ErrNoAgent) {
		err = message.ErrTaskNotFound.At("no such agent")
	}
	if err != nil {
		return door.Caller{}, err
	}
	from, err := s.callerOf(c)
	return door.Caller{Tasks: session{s, agent, from}, Tenant: string(agent), Shares: from.shares()}, err
}

// callerOf returns the caller of a request. Its sources are HMACs, so that they do not reveal addresses.
func (s *Service) callerOf(c echo.Context) (caller, error) {
	from := caller{extensions: message.ExtensionsIn(c.Request().Header)}
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

// Bounds of the callers that wait or read a stream at the same time.
const (
	maxWaiters       = 2048
	maxWaitersOfOne  = 16 // of one client address; each network around it may have twice as many as the next narrower one
	maxWaitersOfTask = 8  // that a change wakes at once
)

// shares returns the caller's shares of the places of those who wait.
func (c caller) shares() (list []door.Share) {
	for i, source := range append([]wire.AgentID{c.source}, c.networks...) {
		list = append(list, door.Share{Key: string(source), Max: maxWaitersOfOne << i})
	}
	return append(list, door.Share{Max: maxWaiters, Fair: true})
}

// session implements [door.Tasks] for one caller of an agent.
type session struct {
	s     *Service
	agent wire.AgentID
	from  caller
}

// taskOf returns a row as the door knows it.
func taskOf(t *taskRow, err error) (door.Task, error) {
	if err != nil {
		return door.Task{}, err
	}
	out := door.Task{ID: t.ID, State: t.State, At: t.At, Row: t}
	if t.isOverdue(time.Now()) {
		out.State = a2a.TaskStateFailed
	}
	if i := slices.IndexFunc(message.Errors(), func(e *message.Error) bool { return t.Reason != "" && e.Reason == t.Reason }); i >= 0 {
		out.Refusal = message.Errors()[i]
	}
	return out, nil
}

func rowOf(t door.Task) *taskRow { return t.Row.(*taskRow) }

// Find implements [door.Tasks].
func (c session) Find(ctx context.Context, id string) (door.Task, error) {
	return taskOf(c.s.find(ctx, c.agent, c.from, id))
}

// Send implements [door.Tasks].
func (c session) Send(ctx context.Context, _ message.Call, m message.Message) (door.Task, error) {
	return taskOf(c.s.send(ctx, c.agent, m, c.from))
}

// Cancel implements [door.Tasks].
func (c session) Cancel(ctx context.Context, t door.Task) (door.Task, error) {
	return taskOf(c.s.cancel(ctx, rowOf(t)))
}

// List implements [door.Tasks]. Callers without a token share nothing, so they have no list.
func (c session) List(ctx context.Context, contextID string) (list []door.Task, err error) {
	if c.from.token == "" {
		return nil, message.ErrUnauthenticated
	}
	for rec, err := range store.AllRecords(ctx, c.s.cfg.Records, NSTasks, callerTerm(c.agent, c.from.token), time.Now()) {
		if err != nil {
			return nil, err
		}
		t, err := taskOf(decodeTask(rec))
		if err != nil {
			return nil, err
		}
		if contextID == "" || rowOf(t).Context == contextID {
			list = append(list, t)
		}
	}
	return list, nil
}

// Show implements [door.Tasks]. The relay keeps no history.
func (c session) Show(ctx context.Context, _ int, tasks ...door.Task) ([]wire.Value, error) {
	var list []wire.Value
	for _, t := range tasks {
		row := rowOf(t)
		if row.Task.IsNull() { // from a list
			if err := c.s.loadBody(ctx, row); errors.Is(err, message.ErrTaskNotFound) {
				row.setState(row.State, "", row.At) // it was removed meanwhile
			} else if err != nil {
				return nil, err
			}
		}
		list = append(list, row.view(time.Now()))
	}
	return list, nil
}

// Since implements [door.Tasks].
func (c session) Since(_ context.Context, seen, now door.Task) ([]wire.Value, error) {
	if seen.State == now.State && rowOf(seen).rev == rowOf(now).rev {
		return nil, nil
	}
	return door.Events(rowOf(now).view(time.Now())), nil
}

// Do implements [door.Tasks].
func (c session) Do(_ context.Context, call message.Call) (wire.Value, error) {
	if call.Method == message.GetExtendedCard {
		return wire.Value{}, message.ErrUnsupported.At("this agent is behind a relay")
	}
	return wire.Value{}, message.ErrPushUnsupported
}
