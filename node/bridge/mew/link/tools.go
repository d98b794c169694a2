package link

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

var toolNames = bridge.Tools()

// toolTexts are what tools/list says of the tools, as JSON.
var toolTexts = map[string]string{
	bridge.ToolDiscover: `{"name":"discover","description":"Search the directories of this AgentMesh node for agents.",
		"inputSchema":{"type":"object","properties":{"query":{"type":"string","description":"words in name or description"},
		"limit":{"type":"integer","minimum":1,"maximum":25}}}}`,
	bridge.ToolSend: `{"name":"send","description":"Write to an AgentMesh agent through this node, under its owner's rules.",
		"inputSchema":{"type":"object","required":["to","text"],"properties":{"to":{"type":"string","description":"am_… of the agent"},
		"text":{"type":"string"},"conversation_id":{"type":"string","description":"of an earlier send of yours"}}}}`,
	bridge.ToolInbox: `{"name":"inbox","description":"Read the conversations that you opened with send.",
		"inputSchema":{"type":"object","properties":{"conversation_id":{"type":"string"}}}}`,
}

func toolList(names []string) wire.Value {
	var list []wire.Value
	for _, name := range toolNames {
		if slices.Contains(names, name) {
			v, err := wire.Parse([]byte(toolTexts[name]))
			if err != nil {
				panic("mew: " + err.Error()) // it is ours
			}
			list = append(list, v)
		}
	}
	return wire.Arr(list...)
}

// use runs a tool for a participant and returns {"result": …} or {"error": …}.
func (l *Link) use(ctx context.Context, from, tool string, arguments wire.Value) wire.Value {
	var v wire.Value
	var err error
	switch tool {
	case bridge.ToolDiscover:
		v, err = l.discover(ctx, arguments)
	case bridge.ToolSend:
		v, err = l.sendFor(ctx, from, arguments)
	case bridge.ToolInbox:
		v, err = l.inboxFor(ctx, from, arguments)
	default:
		err = errors.New("there is no such tool")
	}
	if err != nil {
		l.log.Info("a tool could not do its work", "tool", envelope.ToPrintable(tool, 32), "from", envelope.ToPrintable(from, envelope.MaxName), "err", err)
		code, text := int64(rpcFailed), "the tool failed"
		if e, ok := errors.AsType[*wire.Error](err); ok {
			code, text = rpcRefused, e.Message
		} else if e, ok := errors.AsType[*toolFault](err); ok {
			code, text = rpcParams, e.text
		}
		return wire.Obj(wire.Field("error", rpcFault(code, text)))
	}
	text := wire.Obj(wire.TextField("type", "text"), wire.TextField("text", string(v.JSON())))
	return wire.Obj(wire.Field("result", wire.Obj(
		wire.Field("content", wire.Arr(text)), wire.Field("structuredContent", v))))
}

// toolFault is a mistake of who called a tool.
type toolFault struct{ text string }

func (e *toolFault) Error() string { return e.text }

const maxFound = 25

func (l *Link) discover(ctx context.Context, arguments wire.Value) (wire.Value, error) {
	limit := 10
	if v, ok := arguments.Get("limit"); ok {
		number, _ := v.Num()
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > maxFound {
			return wire.Value{}, &toolFault{"limit must be 1 to 25"}
		}
		limit = n
	}
	found, err := l.b.cfg.Mesh.Find(ctx, client.Query{Text: envelope.ToPrintable(arguments.GetStr("query"), 200), Limit: limit})
	if err != nil {
		return wire.Value{}, err
	}
	list := make([]wire.Value, 0, len(found))
	for _, a := range found {
		list = append(list, wire.Obj(wire.TextField("agent_id", string(a.ID)), wire.TextField("name", a.Name), wire.TextField("description", a.Description),
			wire.Field("intents", wire.Texts(a.Intents))))
	}
	return wire.Obj(wire.Field("agents", wire.Arr(list...))), nil
}

const maxToolText = 64 << 10

// sendFor writes to an agent for a participant. Another link may be written to only where a rule names both (MEW-L6).
func (l *Link) sendFor(ctx context.Context, from string, arguments wire.Value) (wire.Value, error) {
	to, text := arguments.GetStr("to"), arguments.GetStr("text")
	if text == "" || len(text) > maxToolText {
		return wire.Value{}, &toolFault{"text must be 1 to 65536 bytes"}
	}
	letter := bridge.Outgoing{To: wire.AgentID(to), Conv: wire.ConversationID(arguments.GetStr("conversation_id"))}
	if a, err := bridge.ParseAddress(to); err == nil {
		if !l.transit(l.cfg.Name, a.Link) {
			return wire.Value{}, wire.ErrNotAllowed.At("the owner lets nothing pass from this space to that network")
		}
		letter.To, letter.Address = a.Pseudonym(), a.String()
	}
	if !letter.To.Valid() {
		return wire.Value{}, &toolFault{"to must be the id of an agent, am_…"}
	}
	if letter.Conv != "" { // only what this participant opened itself
		if b, ok := recall[Conversation](ctx, l.records, "brought", openKey(letter.To, letter.Conv)); !ok || b.To != from {
			return wire.Value{}, &toolFault{"there is no such conversation of yours"}
		}
	} else {
		letter.Conv = wire.NewConversationID()
		b := Conversation{Conv: letter.Conv, Peer: letter.To, Address: letter.Address, To: from}
		b.Silent = !l.transit(b.network(), l.cfg.Name)
		l.records.apply(ctx, l.records.remember("brought", openKey(letter.To, letter.Conv), b, keepBring, false))
	}
	posted, err := l.post(ctx, from, letter, text)
	if err != nil {
		return wire.Value{}, err
	}
	return wire.Obj(wire.TextField("conversation_id", string(posted.Conversation)), wire.TextField("state", string(posted.State))), nil
}

// post sends a participant's words into the mesh, marked as what they are.
func (l *Link) post(ctx context.Context, from string, letter bridge.Outgoing, text string) (owner.Sent, error) {
	letter.Intent = wire.Deliver
	payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text))))
	letter.Payload = l.address(from).Mark(payload, false)
	return l.b.cfg.Mesh.Send(ctx, letter)
}

const maxInbox = 50

// inboxFor shows a participant what came of its own conversations.
func (l *Link) inboxFor(ctx context.Context, from string, arguments wire.Value) (wire.Value, error) {
	if l.b.cfg.Steps == nil {
		return wire.Value{}, errors.New("no transcripts here")
	}
	wanted, list := arguments.GetStr("conversation_id"), []wire.Value{}
	all, err := l.Conversations(ctx)
	if err != nil {
		return wire.Value{}, err
	}
	for _, b := range all {
		if b.To != from || wanted != "" && string(b.Conv) != wanted || len(list) >= maxInbox {
			continue
		}
		conv := wire.Obj(wire.TextField("conversation_id", string(b.Conv)), wire.TextField("agent_id", string(b.Peer)))
		if wanted != "" {
			entries, err := l.b.cfg.Steps.Transcript(ctx, store.ConvKey{Peer: string(b.Peer), ID: string(b.Conv)}, 0, 200)
			if err != nil {
				return wire.Value{}, err
			}
			messages := []wire.Value{}
			for _, e := range entries {
				if text := b.text(e); text != "" && len(messages) < maxInbox {
					messages = append(messages, wire.Obj(wire.Field("by_agent", wire.Bool(!e.Out)),
						wire.TextField("at", wire.FormatTime(e.At)), wire.TextField("text", text)))
				}
			}
			conv = conv.With("messages", wire.Arr(messages...))
		}
		list = append(list, conv)
	}
	return wire.Obj(wire.Field("conversations", wire.Arr(list...))), nil
}

// text is what a transcript entry says, "" where it says nothing but where a message stands. What came over a link
// stands there as its network wrote it, and is told so where it is no chat.
func (b Conversation) text(e store.Entry) string {
	if b.Address != "" && !e.Out {
		v, err := wire.ParseForeign(e.Raw, envelope.MaxDepth, envelope.MaxValues)
		payload, _ := v.Get("payload")
		if text := payload.GetStr("text"); err == nil && v.GetStr("kind") == envelope.KindChat && text != "" {
			return text
		}
		return strings.ToValidUTF8(string(e.Raw[:min(len(e.Raw), maxToolText)]), "")
	}
	v, err := wire.ParseObject(e.Raw)
	if err != nil {
		return ""
	}
	payload, _ := v.Get("payload")
	action := payload.GetStr("action")
	switch action {
	case wire.ActionReceived, wire.ActionPending, "":
		return ""
	case wire.ActionClose:
		return strings.TrimSpace("(closed: " + payload.GetStr("status") + " " + payload.GetStr("reason") + ")")
	}
	message, _ := payload.Get("message")
	text := message.GetStr("body")
	if s := message.GetStr("subject"); s != "" {
		text = s + "\n\n" + text
	}
	if text == "" {
		text = v.GetStr("intent") + ": " + string(payload.Without("metadata").JSON())
	}
	return strings.ToValidUTF8(text[:min(len(text), maxToolText)], "")
}

// transit says whether the owner lets messages pass from one network to another (MEW-L6).
func (l *Link) transit(from, to string) bool {
	return slices.Contains(l.cfg.Policy.Transit, bridge.Transit{From: from, To: to})
}

// linkOf returns the link and the participant of an address.
func (b *Bridge) linkOf(address string) (*Link, string, error) {
	a, err := bridge.ParseAddress(address)
	if err != nil {
		return nil, "", err
	}
	if l := b.Link(a.Link); l != nil && a.Kind == Kind {
		return l, a.Peer, nil
	}
	return nil, "", errors.New("there is no link " + a.Link)
}

// waitShare bounds the time between two looks at what was brought: what happens is told, but telling may be missed.
const waitShare = 15 * time.Second
