package mess

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl/credential"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// register is POST register (MESS-57). In the local profile, where everybody has the same address, there is no limit
// (AM-82).
func (r *call) register() error {
	if r.local {
		return r.registerExecutor()
	}
	now, from := time.Now(), httpapi.ClientAddr(r.c)
	switch wait, everybody := r.x.registrations.Take(from, now); {
	case everybody:
		return limited("too many registrations of everybody", wait)
	case wait > 0:
		return limited(fmt.Sprintf("too many registrations: at most %d an hour", cmp.Or(r.x.cfg.RegistrationsPerHour, 60)), wait)
	}
	err := r.registerExecutor()
	if err != nil {
		r.x.registrations.Return(from, now)
	}
	return err
}

func (r *call) registerExecutor() error {
	if credential.Mode(r.x.cfg.Registration) == credential.Invite {
		token, _ := strings.CutPrefix(r.c.Request().Header.Get("Authorization"), "Bearer ")
		if r.x.cfg.Invite == "" || !credential.HashOf(token).Equal(credential.HashOf(r.x.cfg.Invite)) {
			return errNoInvite
		}
	}
	v, err := r.object()
	if err != nil {
		return err
	}
	reg, err := readRegistration(v, false)
	if err != nil {
		return err
	}
	pending := credential.Mode(r.x.cfg.Registration) == credential.Approval
	var question []store.Change
	if pending && r.ask != nil {
		if question, err = r.ask(reg); err != nil {
			return err
		}
	}
	key, err := r.x.Register(r.c.Request().Context(), reg, pending, question)
	if err != nil {
		return err
	}
	text := "keep the key: it is shown this once"
	if pending {
		text += "; it works when the owner has approved the registration"
	}
	return r.tree(http.StatusCreated, wire.Obj(
		wire.TextField("executor_id", reg.ID), wire.TextField("api_key", key),
		wire.TextField("message", text)))
}

func (r *call) executors() error {
	if err := r.x.load(); err != nil {
		return err
	}
	list := []wire.Value{}
	for _, c := range r.x.crew.list() {
		if c.Pending && !r.who.Owner {
			continue
		}
		name := wire.Value{}
		if c.Name != "" {
			name = wire.Text(c.Name)
		}
		seen := wire.Value{}
		if at := c.lastSeen(); !at.IsZero() {
			seen = thread.TimeText(at)
		}
		v := wire.Obj(
			wire.TextField("id", c.ID), wire.Field("display_name", name),
			wire.Field("capabilities", needsTree(c.Capabilities)),
			wire.Field("last_seen", seen), wire.Field("created_at", thread.TimeText(c.Created)),
		)
		if r.who.Owner {
			v = v.With("availability", wire.Text(availability(c.Executor)))
			if c.Schedule != "" {
				v = v.With("schedule", wire.Text(c.Schedule)).With("timezone", wire.Text(c.zone.String()))
			}
			v = v.With("pending", wire.Bool(c.Pending)).With("preferences", c.Preferences.tree())
		}
		list = append(list, v)
	}
	return r.tree(http.StatusOK, wire.Obj(wire.Field("executors", wire.Arr(list...))))
}

func (r *call) patchExecutor() error {
	id := r.path[1]
	v, err := r.object()
	if err != nil {
		return err
	}
	reg, err := readRegistration(v, true)
	if err != nil {
		return err
	}
	if err := r.x.ChangeExecutor(r.c.Request().Context(), r.who, id, reg); err != nil {
		return err
	}
	return r.tree(http.StatusOK, wire.Obj(
		wire.TextField("executor_id", id), wire.Field("updated", wire.Bool(true))))
}

// approve is the owner's word on a registration that waits.
func (r *call) approve() error {
	if r.x.load() != nil || r.x.crew.get(r.path[1]) == nil {
		return thread.Missing("no such executor")
	}
	ctx := r.c.Request().Context()
	answered, err := r.decided(ctx, r.path[1])
	if err != nil {
		return err
	}
	if err := r.x.Admit(ctx, r.path[1], true, answered); err != nil {
		return err
	}
	return r.tree(http.StatusOK, wire.Obj(
		wire.TextField("executor_id", r.path[1]), wire.Field("updated", wire.Bool(true))))
}

func (r *call) capabilities() error {
	if err := r.x.load(); err != nil {
		return err
	}
	list := capabilityList(r.x.Available(r.c.QueryParams()["tag"]))
	return r.tree(http.StatusOK, wire.Obj(wire.Field("capabilities", list)))
}

// addCapabilities is the owner's: a YAML stream or JSON.
func (r *call) addCapabilities() error {
	data, err := r.body(thread.MaxDocument)
	if err != nil {
		return err
	}
	list, err := ParseCapabilities(data)
	if err != nil {
		return err
	}
	if err := r.x.AddCapabilities(r.c.Request().Context(), list); err != nil {
		return err
	}
	return r.tree(http.StatusOK, wire.Obj(wire.Field("added", wire.Int(int64(len(list))))))
}

func (r *call) routing() error {
	if err := r.x.load(); err != nil {
		return err
	}
	rules := []wire.Value{}
	for _, rule := range r.x.crew.routing() {
		rules = append(rules, rule.Tree())
	}
	return r.tree(http.StatusOK, wire.Obj(wire.Field("rules", wire.Arr(rules...))))
}

func (r *roster) routing() []thread.Rule {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return append([]thread.Rule{}, r.rules...)
}

// The media types of a raw block (MESS-59).
var yamlTypes = map[string]bool{"application/yaml": true, "text/yaml": true, "application/x-yaml": true}

// messages is POST messages: a raw block, answered with a block of acks and query responses (MESS-59).
func (r *call) messages() error {
	req := r.c.Request()
	kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type"))
	asYAML := yamlTypes[kind]
	if err != nil || !asYAML && kind != "application/json" {
		return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnsupportedMediaType, Message: "Content-Type must be application/yaml or application/json"}
	}
	data, err := r.body(thread.MaxDocument)
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
	once, err := r.once(block.Tree())
	if err != nil {
		return err
	}
	res, err := r.x.Do(req.Context(), who, block, Options{Once: once})
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
