// Package config has the configuration of the program: its keys with their defaults and meaning, how file, environment
// and flags set them, and which values make no sense.
package config

import (
	"net/netip"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// Config is everything that can be set. It is the single source of the YAML key (the tag), of the environment
// variable (AGENTMESH_ and the key in capitals, dots as underscores), of --set key=value, and of docs/config.md,
// which is made from the comments below: meaning, and where there is one, the danger.
//
// What is set later wins: defaults, file, environment, flags. No secret stands in the file itself.
type Config struct {
	// What other owners see as the agent's name.
	Name string `key:"name"`
	// What the agent does, in a sentence.
	Description string `key:"description"`
	// The person behind the agent.
	Owner Owner `key:"owner"`

	// Address and port of the one listener. Without public_url it must be a loopback address.
	Listen string `key:"listen"`
	// The https base URL under which others reach the listener. Setting it makes the process public: every guard of
	// AM-82 is on. TLS is ended by your reverse proxy, or by the listener itself where tls says so.
	PublicURL string `key:"public_url"`
	// The certificate of the listener. The flag --tls NAME sets public_url, listen, acme, accept_terms and plain_listen.
	TLS TLS `key:"tls"`
	// What the process does: directory, node, or both.
	Roles []string `key:"roles"`
	// Base URLs (…/v1) of the directories that the node joins and asks, in this order. Empty: its own.
	Directories []string `key:"directories"`
	// Base URL (…/v1) of a directory whose mailbox relay takes the node's messages, for a node that nobody can connect
	// to. Its mailbox there is the endpoint on the card, and the node joins that directory first (AM-66).
	ViaRelay string `key:"via_relay"`

	// File with the invite code for directories that ask for one.
	InviteFile string `key:"invite_file"`

	// What the card says beside name, owner and key.
	Card Card `key:"card"`
	// Who may write to the node.
	Access Access `key:"access"`
	// Messages that wait for the owner, beyond what is held anyway in both directions (AM-31): offers and acceptances of
	// mesh.negotiate, mesh.handoff, custom intents without a hook. The first rule that matches decides.
	Hold []HoldRule `key:"hold"`
	// The agent behind the node, by intent (AM-72 to AM-75). The first hook that matches takes the message; no match
	// is the inbox. Each hook has exactly one of exec, webhook, openclaw and inbox.
	Hooks []Hook `key:"hooks"`
	// The owner's calendars, from which mesh.schedule is answered.
	Calendar Calendar `key:"calendar"`
	// JSON Schemas that payloads of custom intents must fit (AM-70).
	Schemas []Schema `key:"schemas"`
	// Time limits of hooks and holds.
	Timeouts Timeouts `key:"timeouts"`
	// What the node may send.
	Outgoing Outgoing `key:"outgoing"`
	// How conversations age and how much is kept.
	Conversations Conversations `key:"conversations"`
	// Limits on messages and requests.
	Limits Limits `key:"limits"`
	// The log of decisions: agentmesh audit.
	Audit Audit `key:"audit"`
	// Which clock differences are accepted in messages (AM-20). 24h is a ceiling.
	Window Window `key:"window"`

	// Connections to other networks, each through the bridge of its kind.
	Links []bridge.Link `key:"links"`
	// The MESS exchange of this process.
	MESS MESS `key:"mess"`
	// MEW spaces that are hosted here.
	MEW MEW `key:"mew"`
	// The AgentRelay relay that is hosted here.
	AgentRelay AgentRelay `key:"agentrelay"`
	// The node as a MoltSpeak agent.
	MoltSpeak MoltSpeak `key:"moltspeak"`

	// How the directory takes cards.
	Registration Registration `key:"registration"`
	// The edge of the process towards the network.
	Network Network `key:"network"`
	// The API for the owner. The Unix socket in the data directory is always there.
	OwnerAPI OwnerAPI `key:"owner_api"`
	// How the owner is told.
	Notify Notify `key:"notify"`
	// What is logged, to standard error.
	Log Log `key:"log"`
	// Free bytes on the disk below which nothing is accepted any more, so that it is never the disk that says no.
	MinFreeDisk int `key:"min_free_disk"`
}

// Owner is the person behind the agent.
type Owner struct {
	// Published on the card; empty publishes no owner.
	Name string `key:"name"`
	// An address such as an e-mail. Published on the card, for everyone, as soon as it is set.
	Contact string `key:"contact"`
}

// Card is what the card says beside name, owner and key.
type Card struct {
	// Tags that others find the agent by.
	Capabilities []string `key:"capabilities"`
	// Intents that the node takes. An intent that is not listed is refused, but for answers to own messages.
	Intents []string `key:"intents"`
	// The URL that others send to, where it differs from <public_url>/agentmesh.
	Endpoint string `key:"endpoint"`
}

// Access says who may write to the node (AM-29).
type Access struct {
	// open (anyone), allowlist (only those in allow), or approval (unknown senders wait for the owner).
	// Danger: open lets any registered agent reach your hooks.
	Mode string `key:"mode"`
	// Agent ids that are always let in, unless blocked.
	Allow []string `key:"allow"`
	// Agent ids that are never let in. Wins over everything.
	Block []string `key:"block"`
}

// HoldRule says whether messages of an intent wait for the owner.
type HoldRule struct {
	// An intent, a prefix that ends in .*, or *.
	Intent string `key:"intent"`
	// Actions that the rule is about. Empty: every action.
	Actions []string `key:"actions"`
	// in (to you), out (from you: your commands, hooks and bridges) or empty for both.
	Direction string `key:"direction"`
	// always or never. Danger: never lets a hook commit you without a question.
	Hold string `key:"hold"`
}

// Hook hands messages to the agent behind the node.
type Hook struct {
	// A name for logs and the inbox; empty: the kind and the intent.
	Name string `key:"name"`
	// An intent, a prefix that ends in .*, or *.
	Intent string `key:"intent"`
	// A program and its arguments: no shell, JSON on standard input, answer on standard output. A name without a
	// slash is looked up.
	Exec []string `key:"exec"`
	// The exec may run again for the same message after a crash. Otherwise the owner is asked.
	Repeatable bool `key:"repeatable"`
	// A URL that gets a signed POST (Standard Webhooks).
	Webhook string `key:"webhook"`
	// A URL of OpenClaw's POST /hooks/agent. It gives no result: the sender waits, the reply comes by the owner API.
	OpenClaw string `key:"openclaw"`
	// Which of OpenClaw's agents is meant.
	OpenClawAgent string `key:"openclaw_agent"`
	// Give OpenClaw a session per conversation. Danger: the sender chooses the conversation.
	OpenClawSession bool `key:"openclaw_session"`
	// Leave the messages in the inbox.
	Inbox bool `key:"inbox"`
	// File with the secrets of the webhook (whsec_…, one per line, the first signs new ones) or the bearer of OpenClaw.
	SecretFile string `key:"secret_file"`
	// Environment variable with the same content.
	SecretEnv string `key:"secret_env"`
}

// Schema holds payloads of one custom intent to a schema.
type Schema struct {
	// The custom intent.
	Intent string `key:"intent"`
	// A file with a JSON Schema.
	File string `key:"file"`
}

// Timeouts are time limits of hooks and holds.
type Timeouts struct {
	// How long the sender waits for a hook before it gets pending_approval. At most 20s (AM-32).
	Sync time.Duration `key:"sync"`
	// When a hook that still runs is killed.
	Hook time.Duration `key:"hook"`
	// How long a held message waits for the owner before it expires.
	Hold time.Duration `key:"hold"`
	// When an agent that answers later (openclaw, a webhook that said 202) is reminded, once; as long again, and the
	// owner is told. 0 reminds nobody.
	Remind time.Duration `key:"remind"`
}

// Outgoing says what the node may send (AM-50). It binds commands, hooks, their answers, and bridges alike.
type Outgoing struct {
	// open (to anyone), allowlist (only to those in allow), or approval (each message waits for the owner, but to those
	// in allow and those whom the owner approved for good). Empty: allowlist where allow has entries, else open.
	Mode string `key:"mode"`
	// Agent ids, and addresses of foreign peers, that may be written to.
	Allow []string `key:"allow"`
	// Intents (or prefixes that end in .*, or *) whose messages wait for the owner before they leave.
	Approve []string `key:"approve"`
	// off, prefer (messages whose recipient can open them are sealed to it) or require (what cannot be sealed does not
	// leave). Answers in a conversation in which somebody sealed are sealed in any case.
	Seal string `key:"seal"`
}

// Conversations says how conversations age and how much is kept.
type Conversations struct {
	// An open conversation without a message expires after it.
	Idle time.Duration `key:"idle"`
	// Ended conversations, their transcripts and inbox items go after it.
	Retention time.Duration `key:"retention"`
	// Conversations kept at most; the oldest ended ones go first.
	MaxKept int `key:"max_kept"`
	// Bytes of messages kept at most in all conversations; the oldest ended ones go first. Beside its transcript a
	// message stands in the inbox, and our answer in the record against replay.
	MaxBytes int64 `key:"max_bytes"`
}

// Limits are limits on messages and requests. 0 switches a limit off.
type Limits struct {
	// New conversations per hour and sender (AM-41).
	MessagesNewConversations int `key:"messages_new_conversations"`
	// Messages per hour and conversation (AM-41).
	MessagesConversation int `key:"messages_conversation"`
	// Messages per hour from everyone together (AM-41).
	MessagesTotal int `key:"messages_total"`
	// Requests per minute and client address, in the public profile (AM-43).
	RequestsPerMinute int `key:"requests_per_minute"`
	// Exceptions from the limits (AM-44): agent ids, links (mew:lab) and foreign peers (agentrelay:free/owl) that no message limit
	// touches, and addresses and CIDRs of clients that no request limit touches.
	Exempt []string `key:"exempt"`
}

// Audit bounds the log of decisions.
type Audit struct {
	// Entries kept at most; the oldest go first.
	MaxEntries int `key:"max_entries"`
	// Entries go after it.
	Keep time.Duration `key:"keep"`
}

// Window says which clock differences are accepted in messages (AM-20).
type Window struct {
	// How old a message may be.
	Past time.Duration `key:"past"`
	// How far ahead its clock may be.
	Future time.Duration `key:"future"`
}

// Registration says how the directory takes cards (AM-56, AM-58).
type Registration struct {
	// open (any bearer becomes the card's credential), invite (a code from `agentmesh token create`), or closed.
	Mode string `key:"mode"`
	// Cards per credential; 0 for any number. Off in the local profile.
	CardsPerToken int `key:"cards_per_token"`
	// Cards per endpoint host; 0 for any number. Off in the local profile.
	CardsPerHost int `key:"cards_per_host"`
	// Registrations per hour and client address; 0 for any number. Off in the local profile.
	PerHour int `key:"per_hour"`
}

// Network is the edge of the process towards the network.
type Network struct {
	// CIDRs of private networks whose agents may be called, over http as well (AM-80).
	// Danger: whoever puts a card into your directory may then aim requests at them.
	AllowPrivate []netip.Prefix `key:"allow_private"`
	// CIDRs of reverse proxies whose X-Forwarded-For is believed. Empty: with a public_url and no tls, connections from
	// this machine are the proxy's, if nobody else can connect. The word none: the header is never believed; needed behind
	// a TCP tunnel. With an https public_url and no tls, plain HTTP is taken from proxies and from this machine alone.
	TrustedProxies trustedProxies `key:"trusted_proxies"`
	// Origins of web pages that may call the listener.
	CORSOrigins []string `key:"cors_origins"`
	// Connections at once.
	MaxConnections int `key:"max_connections"`
	// Connections at once from one address, in the public profile.
	MaxConnectionsPerAddress int `key:"max_connections_per_address"`
}

// OwnerAPI is the loopback listener of the owner's API.
type OwnerAPI struct {
	// A loopback address and port for the API behind a token (the file owner.token in the data directory).
	// Empty: the Unix socket alone.
	Listen string `key:"listen"`
	// Host names it answers to, beside loopback ones.
	Hosts []string `key:"hosts"`
}

// Log says what is logged.
type Log struct {
	// debug, info, warn or error.
	Level string `key:"level"`
	// text, json, or auto: text where standard error is a terminal, JSON otherwise.
	Format string `key:"format"`
}

func Default() Config {
	return Config{
		Name:        "My agent",
		Description: "A personal agent.",
		Listen:      "127.0.0.1:3141",
		Roles:       []string{RoleDirectory, RoleNode},
		TLS:         TLS{Authority: LetsEncrypt},
		Card: Card{
			Capabilities: []string{"communication", "scheduling"},
			Intents:      []string{"mesh.schedule", "mesh.message", "mesh.request_info", "mesh.negotiate", "mesh.handoff"},
		},
		Access:        Access{Mode: "approval"},
		Outgoing:      Outgoing{Seal: "off"},
		Calendar:      defaultCalendar(),
		MESS:          defaultMESS(),
		MoltSpeak:     defaultMoltSpeak(),
		Timeouts:      Timeouts{Sync: 20 * time.Second, Hook: 5 * time.Minute, Hold: 7 * day, Remind: 15 * time.Minute},
		Conversations: Conversations{Idle: day, Retention: 30 * day, MaxKept: 100_000, MaxBytes: 8 << 30},
		Limits: Limits{
			MessagesNewConversations: 10, MessagesConversation: 60, MessagesTotal: 100,
			RequestsPerMinute: 120,
		},
		AgentRelay:   defaultAgentRelay(),
		Audit:        Audit{MaxEntries: 100_000, Keep: 365 * day},
		Window:       Window{Past: 15 * time.Minute, Future: 5 * time.Minute},
		Registration: Registration{Mode: "open", CardsPerToken: 10, CardsPerHost: 10, PerHour: 20},
		Network:      Network{MaxConnections: 10_000, MaxConnectionsPerAddress: 256},
		Notify:       Notify{Content: "summary", Format: "json", Batch: 10 * time.Second},
		Log:          Log{Level: "info", Format: "auto"},
		MinFreeDisk:  64 << 20,
	}
}

const (
	day           = 24 * time.Hour
	RoleDirectory = "directory"
	RoleNode      = "node"
)

// Public says whether the process is in the public profile (AM-82).
func (c Config) Public() bool { return c.PublicURL != "" }

// Has reports whether the process has a role.
func (c Config) Has(role string) bool { return slices.Contains(c.Roles, role) }
