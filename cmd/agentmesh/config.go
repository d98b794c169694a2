package main

import (
	"net/netip"
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
	Owner OwnerConfig `key:"owner"`

	// Address and port of the one listener. Without public_url it must be a loopback address.
	Listen string `key:"listen"`
	// The https base URL under which others reach the listener. Setting it makes the process public: every guard of
	// AM-82 is on. TLS is ended by your reverse proxy, or by the listener itself where tls says so.
	PublicURL string `key:"public_url"`
	// The certificate of the listener. The flag --tls NAME sets public_url, listen, acme, accept_terms and plain_listen.
	TLS TLSConfig `key:"tls"`
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
	Card CardConfig `key:"card"`
	// Who may write to the node.
	Access AccessConfig `key:"access"`
	// Messages that wait for the owner, beyond what is held anyway in both directions (AM-31): offers and acceptances of
	// mesh.negotiate, mesh.handoff, custom intents without a hook. The first rule that matches decides.
	Hold []HoldRule `key:"hold"`
	// The agent behind the node, by intent (AM-72 to AM-75). The first hook that matches takes the message; no match
	// is the inbox. Each hook has exactly one of exec, webhook, openclaw and inbox.
	Hooks []HookConfig `key:"hooks"`
	// The owner's calendars, from which mesh.schedule is answered.
	Calendar CalendarConfig `key:"calendar"`
	// JSON Schemas that payloads of custom intents must fit (AM-70).
	Schemas []SchemaConfig `key:"schemas"`
	// Time limits of hooks and holds.
	Timeouts TimeoutConfig `key:"timeouts"`
	// What the node may send.
	Outgoing OutgoingConfig `key:"outgoing"`
	// How conversations age and how much is kept.
	Conversations ConversationConfig `key:"conversations"`
	// Limits on messages and requests.
	Limits LimitConfig `key:"limits"`
	// The log of decisions: agentmesh audit.
	Audit AuditConfig `key:"audit"`
	// Which clock differences are accepted in messages (AM-20). 24h is a ceiling.
	Window WindowConfig `key:"window"`

	// Connections to other networks, each through the bridge of its kind.
	Links []bridge.Link `key:"links"`
	// The MESS exchange of this process.
	MESS MESSConfig `key:"mess"`
	// MEW spaces that are hosted here.
	MEW MEWConfig `key:"mew"`
	// The AgentRelay relay that is hosted here.
	AgentRelay AgentRelayConfig `key:"agentrelay"`
	// The node as a MoltSpeak agent.
	MoltSpeak MoltSpeakConfig `key:"moltspeak"`

	// How the directory takes cards.
	Registration RegistrationConfig `key:"registration"`
	// The edge of the process towards the network.
	Network NetworkConfig `key:"network"`
	// The API for the owner. The Unix socket in the data directory is always there.
	OwnerAPI OwnerAPIConfig `key:"owner_api"`
	// How the owner is told.
	Notify NotifyConfig `key:"notify"`
	// What is logged, to standard error.
	Log LogConfig `key:"log"`
	// Free bytes on the disk below which nothing is accepted any more, so that it is never the disk that says no.
	MinFreeDisk int `key:"min_free_disk"`
}

// OwnerConfig is the person behind the agent.
type OwnerConfig struct {
	// Published on the card; empty publishes no owner.
	Name string `key:"name"`
	// An address such as an e-mail. Published on the card, for everyone, as soon as it is set.
	Contact string `key:"contact"`
}

// CardConfig is what the card says beside name, owner and key.
type CardConfig struct {
	// Tags that others find the agent by.
	Capabilities []string `key:"capabilities"`
	// Intents that the node takes. An intent that is not listed is refused, but for answers to own messages.
	Intents []string `key:"intents"`
	// The URL that others send to, where it differs from <public_url>/agentmesh.
	Endpoint string `key:"endpoint"`
}

// AccessConfig says who may write to the node (AM-29).
type AccessConfig struct {
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

// HookConfig hands messages to the agent behind the node.
type HookConfig struct {
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

// SchemaConfig holds payloads of one custom intent to a schema.
type SchemaConfig struct {
	// The custom intent.
	Intent string `key:"intent"`
	// A file with a JSON Schema.
	File string `key:"file"`
}

// TimeoutConfig are time limits of hooks and holds.
type TimeoutConfig struct {
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

// OutgoingConfig says what the node may send (AM-50). It binds commands, hooks, their answers, and bridges alike.
type OutgoingConfig struct {
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

// ConversationConfig says how conversations age and how much is kept.
type ConversationConfig struct {
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

// LimitConfig are limits on messages and requests. 0 switches a limit off.
type LimitConfig struct {
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

// AuditConfig bounds the log of decisions.
type AuditConfig struct {
	// Entries kept at most; the oldest go first.
	MaxEntries int `key:"max_entries"`
	// Entries go after it.
	Keep time.Duration `key:"keep"`
}

// WindowConfig says which clock differences are accepted in messages (AM-20).
type WindowConfig struct {
	// How old a message may be.
	Past time.Duration `key:"past"`
	// How far ahead its clock may be.
	Future time.Duration `key:"future"`
}

// RegistrationConfig says how the directory takes cards (AM-56, AM-58).
type RegistrationConfig struct {
	// open (any bearer becomes the card's credential), invite (a code from `agentmesh token create`), or closed.
	Mode string `key:"mode"`
	// Cards per credential; 0 for any number. Off in the local profile.
	CardsPerToken int `key:"cards_per_token"`
	// Cards per endpoint host; 0 for any number. Off in the local profile.
	CardsPerHost int `key:"cards_per_host"`
	// Registrations per hour and client address; 0 for any number. Off in the local profile.
	PerHour int `key:"per_hour"`
}

// NetworkConfig is the edge of the process towards the network.
type NetworkConfig struct {
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

// OwnerAPIConfig is the loopback listener of the owner's API.
type OwnerAPIConfig struct {
	// A loopback address and port for the API behind a token (the file owner.token in the data directory).
	// Empty: the Unix socket alone.
	Listen string `key:"listen"`
	// Host names it answers to, beside loopback ones.
	Hosts []string `key:"hosts"`
}

// NotifyConfig says how the owner is told. At most one of command and webhook.
type NotifyConfig struct {
	// A program and its arguments that gets the notices of a while on standard input.
	Command []string `key:"command"`
	// A URL of yours that gets them by POST. It may be on this machine.
	Webhook string `key:"webhook"`
	// json (of a command: a line for each notice; of a webhook: one document), text (for people), or ntfy (a webhook as
	// ntfy takes it: the text, with title and priority in headers).
	Format string `key:"format"`
	// File with the secrets that sign the webhook (whsec_…, one per line), or the bearer that the receiver wants.
	SecretFile string `key:"secret_file"`
	// Environment variable with the same content.
	SecretEnv string `key:"secret_env"`
	// Kinds of notices that are told: approval, outgoing, handoff, expiring, unanswered, agreed, cancelled, closed,
	// key-change, unreadable (a sealed message that could not be opened), hook-failed, interrupted, undelivered, unknown, reply-unverified, reported (a card of our directory),
	// personal (data that left over a bridge), and those of bridges. Empty: all.
	Kinds []string `key:"kinds"`
	// Hours in which only urgent kinds are told, such as 22:00-07:00; the rest follows when they end.
	Quiet string `key:"quiet"`
	// Time zone of quiet, such as Europe/Berlin. Empty: that of the machine.
	Zone string `key:"zone"`
	// Kinds that are told in quiet hours too, such as handoff and expiring.
	Urgent []string `key:"urgent"`
	// How long notices are gathered before they are told at once.
	Batch time.Duration `key:"batch"`
	// summary (an agreed meeting is told with title, time and place) or none.
	Content string `key:"content"`
}

// LogConfig says what is logged.
type LogConfig struct {
	// debug, info, warn or error.
	Level string `key:"level"`
	// text, json, or auto: text where standard error is a terminal, JSON otherwise.
	Format string `key:"format"`
}

func defaultConfig() Config {
	return Config{
		Name:        "My agent",
		Description: "A personal agent.",
		Listen:      "127.0.0.1:3141",
		Roles:       []string{roleDirectory, roleNode},
		TLS:         TLSConfig{Authority: letsEncrypt},
		Card: CardConfig{
			Capabilities: []string{"communication", "scheduling"},
			Intents:      []string{"mesh.schedule", "mesh.message", "mesh.request_info", "mesh.negotiate", "mesh.handoff"},
		},
		Access:        AccessConfig{Mode: "approval"},
		Outgoing:      OutgoingConfig{Seal: "off"},
		Calendar:      defaultCalendar(),
		MESS:          defaultMESS(),
		MoltSpeak:     defaultMoltSpeak(),
		Timeouts:      TimeoutConfig{Sync: 20 * time.Second, Hook: 5 * time.Minute, Hold: 7 * day, Remind: 15 * time.Minute},
		Conversations: ConversationConfig{Idle: day, Retention: 30 * day, MaxKept: 100_000, MaxBytes: 8 << 30},
		Limits: LimitConfig{
			MessagesNewConversations: 10, MessagesConversation: 60, MessagesTotal: 100,
			RequestsPerMinute: 120,
		},
		AgentRelay:   defaultAgentRelay(),
		Audit:        AuditConfig{MaxEntries: 100_000, Keep: 365 * day},
		Window:       WindowConfig{Past: 15 * time.Minute, Future: 5 * time.Minute},
		Registration: RegistrationConfig{Mode: "open", CardsPerToken: 10, CardsPerHost: 10, PerHour: 20},
		Network:      NetworkConfig{MaxConnections: 10_000, MaxConnectionsPerAddress: 256},
		Notify:       NotifyConfig{Content: "summary", Format: "json", Batch: 10 * time.Second},
		Log:          LogConfig{Level: "info", Format: "auto"},
		MinFreeDisk:  64 << 20,
	}
}

const (
	day           = 24 * time.Hour
	roleDirectory = "directory"
	roleNode      = "node"
)

// Public says whether the process is in the public profile (AM-82).
func (c Config) Public() bool { return c.PublicURL != "" }
