package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/wire"
)

// pageSize is how many entries a list has at most.
const pageSize = 10

func clampPageSize(n int) int {
	if n < 1 {
		return pageSize
	}
	return min(n, pageSize)
}

// none is the type of the arguments of a tool that has no arguments.
type none struct{}

type selfResult struct {
	Agent       string           `json:"agent"`
	Key         string           `json:"key"`
	Name        string           `json:"name"`
	Accepts     string           `json:"accepts_messages"` // the access mode
	Sends       string           `json:"sends_messages"`   // the outgoing mode
	Paused      bool             `json:"paused,omitempty"`
	Directories []directoryState `json:"directories"`
	New         int              `json:"new_messages"`
	Waiting     int              `json:"waits_for_owner"`
	You         string           `json:"you"`
}

type directoryState struct {
	URL   string `json:"url"`
	State string `json:"state"`
}

func (t *tools) whoami(ctx context.Context, _ *sdk.CallToolRequest, _ none) (*sdk.CallToolResult, any, error) {
	s, err := owner.Fetch(ctx, t.api, owner.ShowStatus.Call())
	if err != nil {
		return nil, nil, err
	}
	out := selfResult{
		Agent: string(s.AgentID), Key: s.Fingerprint, Name: clean(cut(s.Name, 100)), Accepts: string(s.Mode), Sends: string(s.Outgoing), Paused: s.Paused,
		New: s.Inbox, Waiting: s.Approvals, You: "may read and send; the owner decides everything else",
	}
	for _, d := range s.Directories[:min(pageSize, len(s.Directories))] {
		out.Directories = append(out.Directories, directoryState{cut(d.Directory, 160), string(d.State)})
	}
	return nil, out, nil
}

type findArgs struct {
	Query      string `json:"query,omitempty" jsonschema:"words in name or description"`
	Capability string `json:"capability,omitempty" jsonschema:"such as scheduling"`
	Intent     string `json:"intent,omitempty" jsonschema:"such as mesh.schedule"`
	ProvenOnly *bool  `json:"proven_only,omitempty" jsonschema:"list only agents that own their id; default true"`
	Limit      int    `json:"limit,omitempty" jsonschema:"1 to 10"`
	Cursor     string `json:"cursor,omitempty"`
}

type foundAgent struct {
	Agent     string     `json:"agent"`
	OwnsID    bool       `json:"owns_id"`
	KeyProven bool       `json:"key_proven"`
	Reachable bool       `json:"reachable_proven"`
	AliveAt   *time.Time `json:"alive_at,omitempty"`
	Describes *Untrusted `json:"describes_itself,omitempty"`
}

type foundResult struct {
	Agents []foundAgent `json:"agents"`
	Cursor string       `json:"cursor,omitempty"`
	Failed []string     `json:"directories_failed,omitempty"`
}

// position is a place in the lists of all directories, one after the other.
type position struct {
	Directory int    `json:"d"`
	Cursor    string `json:"c,omitempty"`
}

// maxPages bounds how many pages of directories one call reads. A page may have only agents that are left out.
const maxPages = 5

// find searches one directory after the other, until it has enough agents or has read maxPages pages.
func (t *tools) find(ctx context.Context, req *sdk.CallToolRequest, in findArgs) (*sdk.CallToolResult, any, error) {
	var at position
	if in.Cursor != "" {
		raw, err := base64.RawURLEncoding.DecodeString(in.Cursor)
		if err != nil || json.Unmarshal(raw, &at) != nil || at.Directory < 0 {
			return nil, nil, errors.New("cursor must be one that mesh_find_agents returned")
		}
	}
	self, err := owner.Fetch(ctx, t.api, owner.ShowStatus.Call())
	if err != nil {
		return nil, nil, err
	}
	out := foundResult{Agents: []foundAgent{}}
	limit := clampPageSize(in.Limit)
	for pages := 0; len(out.Agents) < limit && at.Directory < len(self.Directories) && pages < maxPages; pages++ {
		query := owner.Params("limit", strconv.Itoa(limit-len(out.Agents)), "directory", self.Directories[at.Directory].Directory,
			"q", in.Query, "capability", in.Capability, "intent", in.Intent, "cursor", at.Cursor)
		answers, err := owner.Fetch(ctx, t.api, owner.Discover.Call().WithQuery(query))
		if err != nil {
			return nil, nil, err
		}
		at.Cursor = ""
		for _, answer := range answers.Items {
			if answer.Error != "" {
				out.Failed = append(out.Failed, cut(answer.Directory, 160))
			}
			agents := answer.Listing.Agents
			for _, card := range agents[:min(len(agents), limit-len(out.Agents))] { // a directory may ignore the limit
				if agent := t.viewCard(answer, card); agent.OwnsID || in.ProvenOnly != nil && !*in.ProvenOnly {
					out.Agents = append(out.Agents, agent)
				}
			}
			at.Cursor = answer.Listing.Cursor
		}
		if at.Cursor == "" {
			at.Directory++
		}
	}
	if at.Directory < len(self.Directories) {
		raw, _ := json.Marshal(at) // has only an int and a string
		out.Cursor = base64.RawURLEncoding.EncodeToString(raw)
	}
	if n := fit(out.Agents); n < len(out.Agents) { // search again for n agents, because the cursor points past all of them
		in.Limit = n
		return t.find(ctx, req, in)
	}
	return nil, out, nil
}

func (t *tools) viewCard(found owner.Found, card wire.Value) foundAgent {
	id := wire.AgentID(card.GetStr("agent_id"))
	proof := found.Listing.Verification[id]
	return foundAgent{
		Agent: t.handles.partner(party{peer: string(id)}), OwnsID: !slices.Contains(found.Unproven, id), KeyProven: proof.Key != nil,
		Reachable: proof.Endpoint != nil, AliveAt: proof.Alive, Describes: t.handles.mark(describe(card), party{peer: string(id)}, "", 240),
	}
}

type agentArgs struct {
	Agent string `json:"agent" jsonschema:"agent id, alias or address"`
}

type agentResult struct {
	Agent     string     `json:"agent"`
	Key       string     `json:"pinned_key,omitempty"`
	Standing  string     `json:"standing,omitempty"` // the owner's rule
	MayWrite  bool       `json:"messages_leave_without_asking,omitempty"`
	History   []history  `json:"conversations,omitempty"`
	Listed    bool       `json:"has_card"`
	Describes *Untrusted `json:"describes_itself,omitempty"`
}

type history struct {
	Conversation string    `json:"conversation"`
	State        string    `json:"state"`
	Intent       string    `json:"intent"`
	Last         time.Time `json:"last"`
}

func (t *tools) agent(ctx context.Context, _ *sdk.CallToolRequest, in agentArgs) (*sdk.CallToolResult, any, error) {
	peers, err := owner.Fetch(ctx, t.api, owner.ListPeers.Call())
	if err != nil {
		return nil, nil, err
	}
	in.Agent, _ = t.handles.find(in.Agent, "")
	in.Agent = shortAddress(in.Agent)
	out, id := agentResult{}, in.Agent
	for _, p := range peers.Items {
		if p.ID == in.Agent || slices.Contains(p.Aliases, in.Agent) {
			id, out.Key, out.Standing, out.MayWrite = p.ID, p.Fingerprint, string(p.Standing), p.Write
		}
	}
	isForeign := strings.Contains(id, ":") // an address of a foreign peer, for which the list of conversations has no filter
	raw, cardErr := t.api.Raw(ctx, "GET", "cards/"+url.PathEscape(in.Agent), nil, nil)
	card, parseErr := wire.ParseObject(raw)
	if out.Listed = cardErr == nil && parseErr == nil; out.Listed && !isForeign {
		id = card.GetStr("agent_id")
	}
	with := party{peer: id}
	if isForeign {
		with = party{address: id}
	}
	query := url.Values{"peer": {id}, "limit": {strconv.Itoa(pageSize)}}
	if isForeign {
		query = url.Values{"limit": {strconv.Itoa(maxForeign)}}
	}
	list, err := owner.Fetch(ctx, t.api, owner.ListConversations.Call().WithQuery(query))
	for _, c := range list.Items {
		if isWith := !isForeign || shortAddress(c.Address) == id; isWith && len(out.History) < pageSize {
			with.peer = c.Peer
			out.History = append(out.History, history{t.handles.name(untrusted.Text(c.ID), c.Peer), string(c.State), c.Intent.OrCustom(), c.Last})
		}
	}
	out.Agent = t.handles.partner(with)
	if out.Listed {
		out.Describes = t.handles.mark(describe(card), with, out.Key, 1000)
	}
	switch {
	case err != nil || out.Listed || out.Key != "" || out.Standing != "" || len(out.History) > 0:
		return nil, out, err
	case isForeign:
		if refusal, ok := errors.AsType[*wire.Error](cardErr); ok && refusal.Status != http.StatusNotFound {
			return nil, nil, cardErr
		}
		return nil, nil, errors.New("there is no recent conversation with this address; write to it with mesh_send")
	}
	return nil, nil, errors.New("no directory lists this agent, and it is not a peer of your owner; find agents with mesh_find_agents")
}

// shortAddress returns the form of an address that people write for a peer at a URL, such as "a2a:https://agent.example"
// for "a2a:web/https://agent.example".
func shortAddress(address string) string { return strings.Replace(address, ":web/", ":", 1) }

// maxForeign is among how many of the newest conversations mesh_get_agent looks for those with a foreign address.
const maxForeign = 100

type inboxArgs struct {
	State  string `json:"state,omitempty" jsonschema:"new (default), read, answered, held, failed or all"`
	Limit  int    `json:"limit,omitempty" jsonschema:"1 to 10"`
	Cursor string `json:"cursor,omitempty"`
}

type inboxItem struct {
	Item         string     `json:"item"`
	State        string     `json:"state"`
	Conversation string     `json:"conversation"`
	Intent       string     `json:"intent"`
	At           time.Time  `json:"at"`
	Waits        bool       `json:"waits_for_owner,omitempty"`
	Text         *Untrusted `json:"text,omitempty"`
}

// newInboxItem returns an item without its text.
func (t *tools) newInboxItem(i owner.Item) inboxItem {
	return inboxItem{
		Item: i.ID, State: string(i.State), Conversation: t.handles.name(untrusted.Text(i.Conversation), string(i.Peer)), Intent: i.Intent.OrCustom(), At: i.At,
	}
}

type inboxResult struct {
	Items  []inboxItem `json:"items"`
	Cursor string      `json:"cursor,omitempty"`
}

func (t *tools) inbox(ctx context.Context, _ *sdk.CallToolRequest, in inboxArgs) (*sdk.CallToolResult, any, error) {
	state := cmp.Or(in.State, string(owner.ItemNew))
	if state == "all" {
		state = ""
	}
	query := owner.Params("state", state, "limit", strconv.Itoa(clampPageSize(in.Limit)), "after", in.Cursor)
	list, err := owner.Fetch(ctx, t.api, owner.ListInbox.Call().WithQuery(query))
	if err != nil {
		return nil, nil, err
	}
	out := inboxResult{Items: []inboxItem{}, Cursor: list.Next}
	for _, item := range list.Items {
		out.Items = append(out.Items, t.viewItem(ctx, item))
	}
	if n := fit(out.Items); n < len(out.Items) {
		out.Items, out.Cursor = out.Items[:n], out.Items[n-1].Item
	}
	return nil, out, nil
}

// viewItem returns an item with the beginning of its text, unless the item waits for the owner.
func (t *tools) viewItem(ctx context.Context, item owner.Item) inboxItem {
	view := t.newInboxItem(item)
	if item.State == owner.ItemHeld {
		view.Waits = true
	} else {
		view.Text = t.handles.mark(textOfItem(item), authorOf(item), t.keyOf(ctx, item), 200)
	}
	return view
}

func authorOf(item owner.Item) party { return newParty(string(item.Peer), item.Address) }

// keyOf returns the fingerprint that proves the author of an item, or "" if no signature was checked.
func (t *tools) keyOf(ctx context.Context, item owner.Item) string {
	if item.Verified != "signature" {
		return ""
	}
	return t.pinOf(ctx, string(item.Peer))
}

// pinOf returns the pinned fingerprint of a peer, or "" if no key is pinned or the pin cannot be read.
func (t *tools) pinOf(ctx context.Context, peer string) string {
	list, err := owner.Fetch(ctx, t.api, owner.ListPeers.Call().WithQuery(url.Values{"id": {peer}}))
	i := slices.IndexFunc(list.Items, func(p owner.Peer) bool { return p.ID == peer })
	if err != nil || i < 0 {
		return ""
	}
	return list.Items[i].Fingerprint
}

// readArgs are the arguments of mesh_read.
type readArgs struct {
	Conversation string `json:"conversation" jsonschema:"conversation, or an inbox item"`
	Peer         string `json:"peer,omitempty" jsonschema:"needed if two agents use this id"`
	After        uint64 `json:"after,omitempty" jsonschema:"the value of next on the previous page"`
}

type readEntry struct {
	N    uint64     `json:"n,omitempty"` // 0 for a task of a bridge
	At   time.Time  `json:"at"`
	Ours string     `json:"we_wrote,omitempty"`
	Hook *Untrusted `json:"our_program_wrote,omitempty"` // without the owner or its agent, so it may quote the other side
	Text *Untrusted `json:"they_wrote,omitempty"`
}

type readResult struct {
	Conversation string      `json:"conversation"`
	With         string      `json:"with"`
	State        string      `json:"state"`
	Intent       string      `json:"intent"`
	Proposals    []string    `json:"proposals,omitempty"`  // the messages of the standing proposals, the newest first, to name in an answer
	Agreements   []string    `json:"agreements,omitempty"` // for each intent: agreed, cancelled, failed
	Entries      []readEntry `json:"entries"`
	Next         uint64      `json:"next,omitempty"`
}

// maxEntry is how many bytes of a message mesh_read shows.
const maxEntry = 3000

func (t *tools) read(ctx context.Context, _ *sdk.CallToolRequest, in readArgs) (*sdk.CallToolResult, any, error) {
	in.Conversation, in.Peer = t.handles.conversation(in.Conversation, in.Peer)
	if strings.HasPrefix(in.Conversation, "in_") {
		item, err := owner.Fetch(ctx, t.api, owner.ShowItem.Call(in.Conversation))
		switch {
		case err != nil:
			return nil, nil, err
		case item.Conversation == "": // a task of a bridge
			text := t.handles.mark(textOfItem(item), authorOf(item), t.keyOf(ctx, item), maxEntry)
			return nil, readResult{
				With: text.From, State: string(item.State), Intent: item.Intent.OrCustom(), Entries: []readEntry{{At: item.At, Text: text}},
			}, nil
		}
		in.Conversation, in.Peer = string(item.Conversation), string(item.Peer)
	}
	query := owner.Params("after", strconv.FormatUint(in.After, 10), "peer", in.Peer)
	c, err := owner.Fetch(ctx, t.api, owner.ShowConversation.Call(in.Conversation).WithQuery(query))
	if err != nil {
		return nil, nil, err
	}
	with := newParty(c.Peer, c.Address)
	out := readResult{Conversation: t.handles.name(untrusted.Text(c.ID), c.Peer), With: t.handles.partner(with), State: string(c.State), Intent: c.Intent.OrCustom(), Entries: []readEntry{}}
	for _, agreement := range c.Agreements {
		out.Agreements = append(out.Agreements, agreement.Intent.OrCustom()+": "+string(agreement.Standing))
	}
	for i, p := range c.Proposals {
		out.Proposals = append(out.Proposals, t.handles.name(untrusted.Text(p.Message), c.Peer))
		if i == 0 {
			t.proposals.Add(c.ID, p.Message)
		}
	}
	key := t.pinOf(ctx, c.Peer)
	for _, e := range c.Transcript {
		entry := readEntry{N: e.N, At: e.At}
		message, err := wire.ParseObject(e.Message)
		payload, _ := message.Get("payload")
		switch {
		case e.Opened != nil:
			payload = *e.Opened
		case err != nil:
			payload = wire.Text(string(e.Message))
		case payload.Kind() != wire.Object:
			payload = message // of another network, or withheld
		}
		switch text := textOf(cmp.Or(wire.Intent(message.GetStr("intent")), c.Intent), payload); {
		case e.Direction == "out" && !slices.Contains([]string{"owner", "agent", "node"}, e.Author):
			entry.Hook = t.handles.mark(text, party{}, "", maxEntry)
			entry.Hook.From = e.Author
		case e.Direction == "out":
			entry.Ours = cut(clean(text), maxEntry)
		case message.GetStr("signature") == "":
			entry.Text = t.handles.mark(text, with, "", maxEntry)
		default:
			entry.Text = t.handles.mark(text, with, key, maxEntry)
		}
		out.Entries = append(out.Entries, entry)
	}
	out.Next = c.Next
	if n := fit(out.Entries); n < len(out.Entries) {
		out.Entries, out.Next = out.Entries[:n], out.Entries[n-1].N
	}
	return nil, out, nil
}

type ackArgs struct {
	Items []string `json:"items" jsonschema:"ids of inbox items, at most 10"`
}

type ackResult struct {
	Items []inboxItem `json:"items"`
}

func (t *tools) ack(ctx context.Context, _ *sdk.CallToolRequest, in ackArgs) (*sdk.CallToolResult, any, error) {
	if len(in.Items) == 0 || len(in.Items) > pageSize {
		return nil, nil, errors.New("items must have 1 to 10 ids")
	}
	out := ackResult{}
	for _, id := range in.Items {
		item, err := owner.Fetch(ctx, t.api, owner.Acknowledge.Call(id))
		if err != nil {
			return nil, nil, err
		}
		out.Items = append(out.Items, t.newInboxItem(item))
	}
	return nil, out, nil
}
