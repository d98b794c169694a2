package message

import (
	"cmp"
	"slices"
	"strings"

	"github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/agentmesh/agentmesh/node/wire"
)

// oldNames are the names of methods in A2A 0.3 over JSON-RPC.
var oldNames = map[string]string{
	SendMessage: "message/send", SendStreaming: "message/stream", GetTask: "tasks/get", ListTasks: "tasks/list", CancelTask: "tasks/cancel",
	SubscribeToTask: "tasks/resubscribe", CreatePush: "tasks/pushNotificationConfig/set", GetPush: "tasks/pushNotificationConfig/get",
	ListPush: "tasks/pushNotificationConfig/list", DeletePush: "tasks/pushNotificationConfig/delete",
	GetExtendedCard: "agent/getAuthenticatedExtendedCard",
}

// IsOld reports whether the call has the form of A2A 0.3.
func (c Call) IsOld() bool { return c.form != form10 }

func isFinal(state string) bool {
	s := a2a.TaskState(state)
	return s.Terminal() || IsInterrupted(s)
}

// readOld replaces the parameters of a call of 0.3 by those of 1.0.
func (c *Call) readOld() {
	p := c.Params
	task, _ := p.Get("id")
	switch c.Method {
	case SendMessage, SendStreaming:
		p = convert(p, "send", c.form, form10)
		if options, ok := p.Get("configuration"); ok && c.form == formREST { // the JSON of a proto leaves out a false "blocking"
			if _, said := options.Get("returnImmediately"); !said {
				p = p.With("configuration", options.With("returnImmediately", wire.Bool(true)))
			}
		}
	case CreatePush:
		if c.form == formRPC {
			task, _ = p.Get("taskId")
		}
		if outer, ok := p.Get("config"); ok {
			p = outer
		}
		config, _ := p.Get("pushNotificationConfig")
		p = convert(config, "push", c.form, form10)
		if p.Kind() != wire.Object {
			p = wire.Obj()
		}
		p = p.With("taskId", task)
	case GetPush, ListPush, DeletePush:
		if c.form == formRPC {
			config, _ := p.Get("pushNotificationConfigId")
			p = wire.Obj(wire.Field("taskId", task), wire.Field("id", config))
		}
	}
	c.Params = p
}

// writeOld returns a result, or an event of a stream, in the form of the call.
func (c Call) writeOld(v wire.Value) wire.Value {
	switch c.Method {
	case SendMessage, SendStreaming, SubscribeToTask:
		if v = convert(v, "result", form10, c.form); c.form == formRPC {
			v = v.Members()[0].Value
		}
	case GetTask, CancelTask:
		v = convert(v, "task", form10, c.form)
	case ListTasks:
		v = convert(v, "tasks", form10, c.form)
	case CreatePush, GetPush:
		v = c.oldPush(v)
	case ListPush:
		var list []wire.Value
		configs, _ := v.Get("configs")
		for config := range configs.Elems() {
			list = append(list, c.oldPush(config))
		}
		if v = wire.Arr(list...); c.form == formREST {
			v = wire.Obj(wire.Field("configs", v))
		}
	case DeletePush:
		if c.form == formRPC {
			v = wire.Value{}
		}
	case GetExtendedCard:
		v = OldCard(v)
	}
	return v
}

// oldPush returns a push notification configuration in the form of the call.
func (c Call) oldPush(v wire.Value) wire.Value {
	task, _ := v.Get("taskId")
	name := wire.Field("taskId", task)
	if c.form == formREST {
		name = wire.TextField("name", "tasks/"+v.GetStr("taskId")+"/pushNotificationConfigs/"+v.GetStr("id"))
	}
	return wire.Obj(name, wire.Field("pushNotificationConfig", convert(v.Without("taskId", "tenant"), "push", form10, c.form)))
}

// OldTask returns the body of a push notification about a task for a receiver of 0.3.
func OldTask(task wire.Value) wire.Value { return convert(task, "task", form10, formRPC) }

// OldCard returns the card of an agent behind our door in the form of A2A 0.3, without its signatures.
func OldCard(card wire.Value) wire.Value {
	list, _ := card.Get("supportedInterfaces")
	var url, preferred string
	var more []wire.Value
	for i := range list.Elems() { // each of them speaks both versions
		at, binding := i.GetStr("url"), i.GetStr("protocolBinding")
		if url == "" {
			url, preferred = at, binding
		}
		if !slices.ContainsFunc(more, func(v wire.Value) bool { return v.GetStr("transport") == binding }) {
			more = append(more, wire.Obj(wire.TextField("url", at), wire.TextField("transport", binding)))
		}
	}
	capabilities, _ := card.Get("capabilities")
	extended, _ := capabilities.Get("extendedAgentCard")
	old := card.Without("supportedInterfaces", "signatures", "securitySchemes", "securityRequirements").
		With("protocolVersion", wire.Text(oldVersion+".0")).With("url", wire.Text(url)).With("preferredTransport", wire.Text(preferred)).
		With("additionalInterfaces", wire.Arr(more...)).With("capabilities", capabilities.Without("extendedAgentCard"))
	if yes, _ := extended.Boolean(); yes {
		old = old.With("supportsAuthenticatedExtendedCard", extended)
	}
	schemes, _ := card.Get("securitySchemes")
	for _, m := range schemes.Members() {
		if http, ok := m.Value.Get("httpAuthSecurityScheme"); ok {
			old = old.With("securitySchemes", wire.Obj(wire.Field(m.Key, http.With("type", wire.Text("http"))))).
				With("security", wire.Arr(wire.Obj(wire.Field(m.Key, wire.Arr()))))
		}
	}
	return old
}

const oldVersion = "0.3"

// Interface is where and how an agent is reached.
type Interface struct {
	URL     string
	Binding Binding
	Tenant  string
	Version string `json:",omitempty"` // "" means 1.0
}

// FindInterface returns the interface of a card that we use: A2A 1.0 over JSON-RPC, or else over HTTP+JSON, or else the
// same of A2A 0.3.
func FindInterface(card wire.Value) (Interface, bool) {
	var all []Interface
	list, _ := card.Get("supportedInterfaces")
	for i := range list.Elems() {
		all = append(all, Interface{URL: i.GetStr("url"), Binding: Binding(i.GetStr("protocolBinding")), Tenant: i.GetStr("tenant"), Version: i.GetStr("protocolVersion")})
	}
	version := card.GetStr("protocolVersion") // only a card of 0.3 has it
	binding := cmp.Or(Binding(card.GetStr("preferredTransport")), JSONRPC)
	all = append(all, Interface{URL: card.GetStr("url"), Binding: binding, Version: version})
	more, _ := card.Get("additionalInterfaces")
	for i := range more.Elems() {
		all = append(all, Interface{URL: i.GetStr("url"), Binding: Binding(i.GetStr("transport")), Version: version})
	}
	for _, version := range []string{"1.0", oldVersion} {
		for _, binding := range []Binding{JSONRPC, HTTPJSON} {
			for _, i := range all {
				if i.URL != "" && i.Binding == binding && (i.Version == version || strings.HasPrefix(i.Version, version+".")) {
					i.URL = strings.TrimRight(i.URL, "/")
					if i.Version = version; version == "1.0" {
						i.Version = ""
					}
					return i, true
				}
			}
		}
	}
	return Interface{}, false
}

func (i Interface) form() form {
	switch {
	case i.Version == "":
		return form10
	case i.Binding == JSONRPC:
		return formRPC
	}
	return formREST
}
