package rest

import (
	"context"
	"mime"
	"net/http"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// register handles POST /register (MESS-57). In the local profile all callers have the same address, so the number of
// registrations is not limited (AM-82).
func (r *call) register() error {
	if r.Local {
		return r.registerExecutor()
	}
	return r.Exchange.Executors.ChargeRegistration(httpapi.ClientAddr(r.c), r.registerExecutor)
}

func (r *call) registerExecutor() error {
	v, err := r.readObject()
	if err != nil {
		return err
	}
	const patch = false
	reg, err := registry.ReadRegistration(v, patch)
	if err != nil {
		return err
	}
	req := r.c.Request()
	key, pending, err := r.Exchange.Executors.Register(req.Context(), reg, req.Header.Get("Authorization"))
	if err != nil {
		return err
	}
	text := "keep the key: it is not shown again"
	if pending {
		text += "; it works when the owner has approved the registration"
	}
	return r.respond(http.StatusCreated, wire.Obj(
		wire.TextField("executor_id", reg.ID), wire.TextField("api_key", key),
		wire.TextField("message", text)))
}

// executors handles GET /executors.
func (r *call) executors() error {
	executors, err := r.Exchange.Executors.List()
	if err != nil {
		return err
	}
	list := []wire.Value{}
	for _, c := range executors {
		if c.Pending && !r.who.Owner {
			continue
		}
		seen := wire.Value{}
		if !c.Seen.IsZero() {
			seen = thread.TimeText(c.Seen)
		}
		v := wire.Obj(
			wire.TextField("id", c.ID), wire.Field("display_name", thread.TextOrNull(c.Name)),
			wire.Field("capabilities", thread.NeedsTree(c.Capabilities)),
			wire.Field("last_seen", seen), wire.Field("created_at", thread.TimeText(c.Created)),
		)
		if r.who.Owner {
			v = v.With("availability", wire.Text(c.Availability))
			if c.Schedule != "" {
				v = v.With("schedule", wire.Text(c.Schedule)).With("timezone", wire.Text(c.Timezone))
			}
			v = v.With("pending", wire.Bool(c.Pending)).With("preferences", c.Preferences).With("notifications", c.Notifications)
		}
		list = append(list, v)
	}
	return r.respond(http.StatusOK, wire.Obj(wire.Field("executors", wire.Arr(list...))))
}

// patchExecutor handles PATCH /executors/{id}.
func (r *call) patchExecutor() error {
	id := r.path[1]
	v, err := r.readObject()
	if err != nil {
		return err
	}
	const patch = true
	reg, err := registry.ReadRegistration(v, patch)
	if err != nil {
		return err
	}
	if err := r.Exchange.Executors.Change(r.c.Request().Context(), r.who.ID, r.who.Owner, id, reg); err != nil {
		return err
	}
	return r.respondUpdated(id)
}

func (r *call) respondUpdated(id string) error {
	return r.respond(http.StatusOK, wire.Obj(wire.TextField("executor_id", id), wire.Field("updated", wire.Bool(true))))
}

// approve handles POST /executors/{id}/approve.
func (r *call) approve() error {
	if r.Exchange.Executors.Get(r.path[1]) == nil {
		return thread.Missing("no such executor")
	}
	err := r.decide(func(ctx context.Context, id string, withdrawal []store.Change) error {
		return r.Exchange.Executors.Admit(ctx, id, true, withdrawal)
	})
	if err != nil {
		return err
	}
	return r.respondUpdated(r.path[1])
}

// capabilities handles GET /capabilities.
func (r *call) capabilities() error {
	if err := r.Exchange.Load(); err != nil {
		return err
	}
	list := registry.CapabilityArray(r.Exchange.Executors.Available(r.c.QueryParams()["tag"]))
	return r.respond(http.StatusOK, wire.Obj(wire.Field("capabilities", list)))
}

// addCapabilities adds the owner's entries to the catalog, from a YAML stream or JSON.
func (r *call) addCapabilities() error {
	data, err := r.readBody(thread.MaxDocument)
	if err != nil {
		return err
	}
	list, err := registry.ParseCapabilities(data)
	if err != nil {
		return err
	}
	if err := r.Exchange.Executors.AddCapabilities(r.c.Request().Context(), list); err != nil {
		return err
	}
	return r.respond(http.StatusOK, wire.Obj(wire.Field("added", wire.Int(int64(len(list))))))
}

// routing handles GET /routing.
func (r *call) routing() error {
	rules, err := r.Exchange.Executors.Rules()
	if err != nil {
		return err
	}
	return r.respond(http.StatusOK, wire.Obj(wire.Field("rules", rules)))
}

// yamlTypes are the media types of a block in YAML (MESS-59).
var yamlTypes = map[string]bool{"application/yaml": true, "text/yaml": true, "application/x-yaml": true}

// messages handles POST /messages with a block (a list of MESS entries), and answers with a block of acks and query
// responses (MESS-59).
func (r *call) messages() error {
	req := r.c.Request()
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	asYAML := yamlTypes[kind]
	if err != nil || !asYAML && kind != "application/json" {
		return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnsupportedMediaType, Message: "Content-Type must be application/yaml or application/json"}
	}
	data, err := r.readBody(thread.MaxDocument)
	if err != nil {
		return err
	}
	var block thread.Block
	if asYAML {
		block, err = thread.Parse(data)
	} else {
		var v wire.Value
		if v, err = thread.ParseJSON(data); err == nil {
			block, err = thread.FromTree(v)
		}
	}
	if err != nil {
		return err
	}
	who := r.who
	if !who.Owner {
		who.Channel = "messages"
	}
	replay, err := r.readReplayKey(block.Tree())
	if err != nil {
		return err
	}
	res, err := r.Exchange.Do(req.Context(), who, block, exchange.Options{Replay: replay})
	if err != nil {
		return err
	}
	switch accept := req.Header.Get("Accept"); {
	case strings.Contains(accept, "yaml"):
		asYAML = true
	case strings.Contains(accept, "application/json"):
		asYAML = false
	}
	status := http.StatusOK
	if len(res.Created) > 0 {
		status = http.StatusCreated
	}
	if asYAML {
		return r.c.Blob(status, "application/yaml", res.Answers.YAML())
	}
	return httpapi.Raw(r.c, status, append(res.Answers.JSON(), '\n'))
}

// giveKey handles POST /executors/{id}/key.
func (r *call) giveKey() error {
	key := ""
	err := r.decide(func(ctx context.Context, id string, withdrawal []store.Change) (err error) {
		key, err = r.Exchange.Executors.GiveKey(ctx, id, withdrawal)
		return err
	})
	if err != nil {
		return err
	}
	return r.respond(http.StatusCreated, wire.Obj(
		wire.TextField("executor_id", r.path[1]), wire.TextField("api_key", key),
		wire.TextField("message", "keep the key: it is not shown again; the previous key no longer works")))
}

// takeKey handles DELETE /executors/{id}/key.
func (r *call) takeKey() error {
	if err := r.decide(r.Exchange.Executors.TakeKey); err != nil {
		return err
	}
	return r.respondUpdated(r.path[1])
}

// decide changes an executor and withdraws the owner's question about its registration in the same transaction.
func (r *call) decide(change func(ctx context.Context, id string, withdrawal []store.Change) error) (err error) {
	ctx := r.c.Request().Context()
	var withdrawal []store.Change
	if r.Withdraw != nil {
		if withdrawal, err = r.Withdraw(ctx, r.path[1]); err != nil {
			return err
		}
	}
	return change(ctx, r.path[1], withdrawal)
}
