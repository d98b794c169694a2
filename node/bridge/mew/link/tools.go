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

// toolTexts holds the descriptions of the tools for tools/list, as JSON.
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
				panic("mew: " + err.Error()) // a constant of this file
			}
			list = append(list, v)
		}
	}
	return wire.Arr(list...)
}

// runTool runs a tool for a participant and returns {"result": …} or {"error": …}.
func (l *Link) runTool(ctx context.Context, from, tool string, arguments wire.Value) wire.Value {
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
		l.log.Info("run a tool for a participant", "tool", envelope.ToPrintable(tool, 32), "from", envelope.ToPrintable(from, envelope.MaxName), "err", err)
		code, text := int64(rpcFailed), "the tool failed"
		if e, ok := errors.AsType[*wire.Error](err); ok {
			code, text = rpcRefused, e.Message
		} else if e, ok := errors.AsType[*toolFault](err); ok {
			code, text = rpcParams, e.text
		}
		return rpcError(code, text)
	}
	text := wire.Obj(wire.TextField("type", "text"), wire.TextField("text", string(v.JSON())))
	return wire.Obj(wire.Field("result", wire.Obj(
		wire.Field("content", wire.Arr(text)), wire.Field("structuredContent", v))))
}

// toolFault is the error for a tool call with invalid arguments. Its text is for the caller.
type toolFault struct{ text string }

func (e *toolFault) Error() string { return e.text }

const maxFound = 25 // agents

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

const maxToolText = 64 << 10 // bytes

// sendFor sends a participant's message to an agent. Nothing passes to another link (MEW-L6).
func (l *Link) sendFor(ctx context.Context, from string, arguments wire.Value) (wire.Value, error) {
	to, text := arguments.GetStr("to"), arguments.GetStr("text")
	if text == "" || len(text) > maxToolText {
		return wire.Value{}, &toolFault{"text must be 1 to 65536 bytes"}
	}
	out := bridge.Outgoing{To: wire.AgentID(to), Conv: wire.ConversationID(arguments.GetStr("conversation_id"))}
	if !out.To.Valid() {
		return wire.Value{}, &toolFault{"to must be the id of an agent, am_…"}
	}
	opens := out.Conv == ""
	if !opens { // only a conversation that this participant opened
		if c, ok := load[Conversation](ctx, l.records, kindOpened, openKey(out.To, out.Conv)); !ok || c.To != from {
			return wire.Value{}, &toolFault{"there is no such conversation of yours"}
		}
	} else {
		out.Conv = wire.NewConversationID()
		if err := l.records.open(ctx, Conversation{Conv: out.Conv, Peer: out.To, To: from}); err != nil { // before the send, because the answer may come at once
			return wire.Value{}, err
		}
	}
	sent, err := l.sendToMesh(ctx, from, out, text)
	if err != nil {
		if opens {
			l.records.apply(ctx, l.records.drop(kindOpened, openKey(out.To, out.Conv)))
		}
		return wire.Value{}, err
	}
	return wire.Obj(wire.TextField("conversation_id", string(sent.Conversation)), wire.TextField("state", string(sent.State))), nil
}

// sendToMesh sends a participant's message to an agent, with the participant's address in its metadata.
func (l *Link) sendToMesh(ctx context.Context, from string, out bridge.Outgoing, text string) (owner.Sent, error) {
	out.Intent = wire.Deliver
	payload := wire.Obj(wire.TextField("action", "deliver"), wire.Field("message", wire.Obj(wire.TextField("body", text))))
	out.Payload = l.address(from).Mark(payload, false) // false: the participant did not prove its identity
	return l.b.cfg.Mesh.Send(ctx, out)
}

const (
	maxInbox      = 50  // messages of a conversation that a participant can read
	maxTranscript = 200 // last entries of a conversation, among which its newest messages are searched
)

// inboxFor shows a participant its own conversations, or the newest messages of one of them.
func (l *Link) inboxFor(ctx context.Context, from string, arguments wire.Value) (wire.Value, error) {
	wanted, list := arguments.GetStr("conversation_id"), []wire.Value{}
	all, err := l.conversationsOpened(ctx)
	if err != nil {
		return wire.Value{}, err
	}
	for _, c := range all {
		if c.To != from || wanted != "" && string(c.Conv) != wanted || len(list) >= maxOpenedByOne {
			continue
		}
		conv := wire.Obj(wire.TextField("conversation_id", string(c.Conv)), wire.TextField("agent_id", string(c.Peer)))
		if wanted != "" {
			messages, err := c.newestMessages(ctx, l.b.cfg.Steps)
			if err != nil {
				return wire.Value{}, err
			}
			conv = conv.With("messages", wire.Arr(messages...))
		}
		list = append(list, conv)
	}
	return wire.Obj(wire.Field("conversations", wire.Arr(list...))), nil
}

// newestMessages returns the newest messages of a conversation, oldest first.
func (c Conversation) newestMessages(ctx context.Context, steps store.Steps) ([]wire.Value, error) {
	key, messages := store.ConvKey{Peer: string(c.Peer), ID: string(c.Conv)}, []wire.Value{}
	conv, err := steps.Conversation(ctx, key, time.Now())
	if errors.Is(err, store.ErrNotFound) { // its first message waits for the owner
		return messages, nil
	} else if err != nil {
		return nil, err
	}
	entries, err := steps.Transcript(ctx, key, conv.Entries-min(conv.Entries, maxTranscript), maxTranscript)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if text := entryText(e); text != "" {
			messages = append(messages, wire.Obj(wire.Field("by_agent", wire.Bool(!e.Out)),
				wire.TextField("at", wire.FormatTime(e.At)), wire.TextField("text", text)))
		}
	}
	return messages[max(0, len(messages)-maxInbox):], nil
}

// entryText returns the text of a transcript entry, or "" for an entry that only reports a state.
func entryText(e store.Entry) string {
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
	text := messageText(message)
	if text == "" {
		text = v.GetStr("intent") + ": " + string(payload.Without("metadata").JSON())
	}
	return strings.ToValidUTF8(text[:min(len(text), maxToolText)], "")
}

// findLink returns the link and the participant in an address.
func (b *Bridge) findLink(address string) (*Link, string, error) {
	a, err := bridge.ParseAddress(address)
	if err != nil {
		return nil, "", err
	}
	if l := b.Link(a.Link); l != nil && a.Kind == Kind {
		return l, a.Peer, nil
	}
	return nil, "", errors.New("there is no link " + a.Link)
}

// expireEvery is the time between two attempts to answer expired proposals and requests.
const expireEvery = 15 * time.Second
