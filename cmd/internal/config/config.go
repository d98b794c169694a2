// Package config defines the configuration of the program: its keys with their defaults and meaning, how the file,
// the environment and flags set them, and which values are refused.
package config

import (
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/rules"
)

// Config holds every setting. Each field defines the YAML key (the tag), the environment variable (AGENTMESH_ and the
// key in capitals, dots as underscores), --set key=value, and the text in docs/config.md, which is generated from the
// comments below: each comment gives the meaning and, if there is one, the danger. Other tags give the default, the
// allowed texts (oneof, with commas), and the smallest and largest value (min, max).
//
// A value comes from the last of these that sets it: defaults, file, environment, flags. The file itself never contains
// a secret.
type Config struct {
	// The agent's name, as other owners see it.
	Name string `key:"name" default:"My agent"`
	// One sentence about what the agent does.
	Description string `key:"description" default:"A personal agent."`
	// The person behind the agent.
	Owner Owner `key:"owner"`

	// Address and port of the listener. Without public_url this must be a loopback address.
	Listen string `key:"listen" default:"127.0.0.1:3141"`
	// The https base URL under which others reach the listener. Setting it puts the process into the public profile, in
	// which every guard against strangers is on. Your reverse proxy terminates TLS, unless tls gives the listener a
	// certificate of its own.
	PublicURL string `key:"public_url"`
	// The certificate of the listener. The flag --tls NAME sets public_url, listen, acme, accept_terms and plain_listen.
	TLS TLS `key:"tls"`
	// The roles of the process: directory, node, or both.
	Roles []string `key:"roles" default:"directory, node" oneof:"directory,node"`
	// Base URLs (…/v1) of the directories that the node joins and searches, in this order. Empty: the directory in its
	// own process.
	Directories []string `key:"directories"`
	// Base URL (…/v1) of a directory whose mailbox receives the node's messages, for a node that nobody can connect to.
	// The card then names this mailbox as its endpoint, and the node joins this directory before the others.
	ViaRelay string `key:"via_relay"`

	// File with the links (https://…/join#CODE) or the invite code for directories that require one.
	InviteFile string `key:"invite_file"`

	// The parts of the card besides name, description, owner and key.
	Card Card `key:"card"`
	// Decides which agents may write to the node.
	Access Access `key:"access"`
	// Rules that decide which messages wait for the owner. The first rule that matches decides. If no rule matches, these
	// wait in both directions: every mesh.handoff, every custom intent without a hook, and offers and acceptances of
	// mesh.negotiate.
	Hold []HoldRule `key:"hold"`
	// The programs and URLs that answer messages, by intent. The first hook that matches gets the message; without a
	// match the message goes to the inbox. Each hook has exactly one of exec, webhook, a2a, openclaw and inbox.
	Hooks []Hook `key:"hooks"`
	// A hook of exactly one of exec, webhook and a2a that judges texts. What it does not allow waits for the owner.
	Guard Guard `key:"guard"`
	// The owner's calendars, from which the node answers mesh.schedule.
	Calendar Calendar `key:"calendar"`
	// JSON Schemas for the payloads of custom intents. A payload that does not fit is refused.
	Schemas []Schema `key:"schemas"`
	// Time limits of hooks, and of messages that wait for the owner.
	Timeouts Timeouts `key:"timeouts"`
	// Decides what the node may send.
	Outgoing Outgoing `key:"outgoing"`
	// How long conversations live, and how much of them is kept.
	Conversations Conversations `key:"conversations"`
	// Limits on messages and requests.
	Limits Limits `key:"limits"`
	// How far your agent may go without you.
	Autonomy Autonomy `key:"autonomy"`
	// The log of decisions, which agentmesh audit shows.
	Audit Audit `key:"audit"`
	// The clock differences that the node accepts in messages. At most 24h each.
	Window Window `key:"window"`

	// Connections to other networks. Each link uses the bridge of its kind.
	Links []bridge.Link `key:"links"`
	// The MESS exchange of this process.
	MESS MESS `key:"mess"`
	// The MEW spaces that this process hosts.
	MEW MEW `key:"mew"`
	// The AgentRelay relay that this process hosts.
	AgentRelay AgentRelay `key:"agentrelay"`
	// The node as a MoltSpeak agent.
	MoltSpeak MoltSpeak `key:"moltspeak"`
	// The node as an A2A agent.
	A2A A2A `key:"a2a"`

	// How the directory accepts cards.
	Registration Registration `key:"registration"`
	// The operator of the directory, as its public pages show it.
	Site Site `key:"site"`
	// How the directory appears to other registries.
	Discovery Discovery `key:"discovery"`
	// The network connections of the process.
	Network Network `key:"network"`
	// The API for the owner. The Unix socket in the data directory is always there.
	OwnerAPI OwnerAPI `key:"owner_api"`
	// The agent's door: the part of the API that reads and sends and decides nothing. Give it to your agent.
	AgentDoor AgentDoor `key:"agent_door"`
	// How the node notifies the owner.
	Notify Notify `key:"notify"`
	// The log of the process, on standard error.
	Log Log `key:"log"`
	// The database.
	Store Store `key:"store"`
	// The number of free bytes on the disk below which the process accepts nothing, so that the disk never fills up.
	// 0: no limit. It has no effect with PostgreSQL.
	MinFreeDisk int `key:"min_free_disk"`
}

// Owner is the person behind the agent.
type Owner struct {
	// Published on the card. Empty: the card names no owner.
	Name string `key:"name"`
	// An address, such as an e-mail address. Published on the card, for everyone, as soon as it is set.
	Contact string `key:"contact"`
	// The owner's time zone, such as Europe/Berlin, for the page, the calendar and quiet hours. It is not published. Empty:
	// the zone of the machine.
	Zone string `key:"zone"`
}

// Card holds the parts of the card besides name, description, owner and key.
type Card struct {
	// Tags by which others find the agent.
	Capabilities []string `key:"capabilities" default:"communication, scheduling"`
	// Intents that the node accepts. It refuses all others, except answers to its own messages.
	Intents []string `key:"intents" default:"mesh.schedule, mesh.message, mesh.request_info, mesh.negotiate, mesh.handoff"`
	// The URL that others send to, if it differs from <public_url>/agentmesh.
	Endpoint string `key:"endpoint"`
}

// Access decides which agents may write to the node (AM-29).
type Access struct {
	// open (anyone), allowlist (only agents in allow), or approval (messages of unknown senders wait for the owner).
	// Danger: open lets any registered agent reach your hooks.
	Mode string `key:"mode" default:"approval" oneof:"open,allowlist,approval"`
	// Agent ids that are always let in, unless they are blocked.
	Allow []string `key:"allow"`
	// Agent ids that are never let in. This wins over everything else.
	Block []string `key:"block"`
}

// HoldRule decides whether messages of an intent wait for the owner.
type HoldRule struct {
	// An intent, a prefix that ends in .*, or *.
	Intent string `key:"intent"`
	// Actions that the rule applies to. Empty: every action.
	Actions []string `key:"actions"`
	// in (to you), out (from you: your commands, hooks and bridges), or empty for both.
	Direction string `key:"direction" oneof:",in,out"`
	// always or never. Danger: with never, a hook can commit you without asking you.
	Hold string `key:"hold" oneof:"always,never"`
	// A name for the audit log and the page.
	Name string `key:"name"`
	// Only for mesh.schedule with hold: always. Appointments that your agent makes alone nevertheless.
	Unless Mandate `key:"unless"`
}

// Mandate says which appointments the agent makes alone. Every key that is set must hold. Proposals of the peers go to
// the agent.
type Mandate struct {
	// The ids of the agents with which it makes them. To let an agent in, or to approve it, is not enough.
	Peers []string `key:"peers"`
	// free: every time must be free in your calendars. Empty: the calendars do not matter.
	Calendar string `key:"calendar"`
	// The longest appointment.
	Length time.Duration `key:"length"`
	// The largest number of conversations with one agent within 24 hours.
	PerPeerDay int `key:"per_peer_day"`
	// ours: no place that only the other side named. Empty: any place.
	Place string `key:"place"`
	// Places of the other side that are fine with place: ours.
	Places []string `key:"places"`
}

// Hook hands messages to the program or URL behind the node.
type Hook struct {
	// A name for logs and the inbox. Empty: the kind and the intent.
	Name string `key:"name"`
	// An intent, a prefix that ends in .*, or *.
	Intent string `key:"intent"`
	// A program and its arguments. It runs without a shell, reads JSON on standard input and answers on standard output.
	// A name without a slash is looked up in PATH.
	Exec []string `key:"exec"`
	// The exec or the A2A agent may get the same message again after a restart or a crash. Otherwise the node asks the
	// owner. A webhook and OpenClaw get it again in any case, with the same id.
	Repeatable bool `key:"repeatable"`
	// The user that the exec runs as, a name or a number, so that it cannot open the data directory. Only a process that
	// runs as root may switch users. Empty: the user of agentmesh.
	User string `key:"user"`
	// Variables of the exec's environment, as NAME=VALUE. The environment also has PATH and AGENTMESH_AGENT_SOCKET, the
	// path of an agent's door for hooks, but no other variables.
	Environment []string `key:"environment"`
	// A URL that gets a signed POST (Standard Webhooks).
	Webhook string `key:"webhook"`
	// The URL of the JSON-RPC interface of an A2A agent, such as http://127.0.0.1:18789/a2a/v1 for OpenClaw. The agent's
	// answer becomes the reply.
	A2A string `key:"a2a"`
	// The URL of OpenClaw's POST /hooks/agent. OpenClaw returns no result: the sender gets pending_approval at once, and
	// the reply comes later through the owner API.
	OpenClaw string `key:"openclaw"`
	// The OpenClaw agent to call.
	OpenClawAgent string `key:"openclaw_agent"`
	// Give OpenClaw one session per conversation. Danger: the sender chooses the conversation.
	OpenClawSession bool `key:"openclaw_session"`
	// Also give the hook the answers that a peer returns at once to your own messages, and all answers of MoltSpeak peers.
	// With false these only go to the inbox. The bounds in autonomy end a conversation in which both sides answer every
	// answer.
	Replies bool `key:"replies" default:"true"`
	// Leave the messages in the inbox.
	Inbox bool `key:"inbox"`
	// File with the secrets of the webhook (whsec_…, one per line, the first one signs) or with the bearer token of
	// OpenClaw or the A2A agent.
	SecretFile string `key:"secret_file"`
}

// Schema names the JSON Schema for the payloads of one custom intent.
type Schema struct {
	// The custom intent.
	Intent string `key:"intent"`
	// A file with a JSON Schema.
	File string `key:"file"`
}

// Timeouts has the time limits of hooks, and of messages that wait for the owner.
type Timeouts struct {
	// How long a hook may run before it is killed.
	Hook time.Duration `key:"hook" default:"5m" min:"1ms"`
	// How long a held message waits for the owner before it expires.
	Hold time.Duration `key:"hold" default:"7d" min:"1ms"`
	// How long to wait for an agent that answers later (openclaw, or a webhook that returned 202) before the node reminds
	// it, once. After the same time again, the node notifies the owner. 0 turns reminders off.
	Remind time.Duration `key:"remind" default:"15m"`
}

// Outgoing decides what the node may send (AM-50). It applies to commands, hooks, answers of hooks, and bridges alike.
type Outgoing struct {
	// open (to anyone), allowlist (only to agents in allow), or approval (each message waits for the owner, except to
	// agents in allow and agents that the owner has approved permanently). Empty: allowlist if allow has entries, else
	// open.
	Mode string `key:"mode" oneof:",open,allowlist,approval"`
	// Agent ids, and addresses of foreign peers, that the node may write to.
	Allow []string `key:"allow"`
	// Intents (or prefixes that end in .*, or *) whose messages wait for the owner before they leave.
	Approve []string `key:"approve"`
	// Whether messages are sealed (encrypted for the recipient alone): off, prefer (if the recipient can open it) or
	// require (do not send what cannot be sealed). The message that ends a conversation is always sent unsealed. In a
	// conversation with a sealed message, answers are sealed in any case.
	Seal string `key:"seal" default:"off" oneof:"off,prefer,require"`
}

// Conversations limits how long conversations live and how much of them is kept.
type Conversations struct {
	// An open conversation expires after this time without a message.
	Idle time.Duration `key:"idle" default:"24h" min:"1ms"`
	// Ended conversations are deleted after this time, with their transcripts and inbox items.
	Retention time.Duration `key:"retention" default:"30d" min:"1ms"`
	// The maximum number of bytes of messages in all transcripts. The oldest ended conversations are deleted first. The
	// disk needs more than this, because a message is also in the inbox.
	MaxBytes int64 `key:"max_bytes" min:"1"`
}

// Limits are limits on messages and requests. 0 switches a limit off.
type Limits struct {
	// New conversations per hour and sender.
	MessagesNewConversations int `key:"messages_new_conversations" default:"10"`
	// Messages per hour and conversation.
	MessagesConversation int `key:"messages_conversation" default:"60"`
	// Messages per hour from all senders together. Half of them are for senders that the owner does not know, and two
	// fifths of that half more for the first messages of new networks. A lone stranger gets four fifths of the half, so
	// 40 by default, whatever the other limits are.
	MessagesTotal int `key:"messages_total" default:"100"`
	// New A2A contexts per hour of a caller with a token. The limits per sender and of all messages do not count them.
	A2AContexts int `key:"a2a_contexts" default:"100"`
	// Requests per minute and client address, in the public profile.
	RequestsPerMinute int `key:"requests_per_minute" default:"120"`
	// Exceptions from the limits: agent ids, links (mew:lab) and foreign peers (agentrelay:free/owl) that have no message
	// limits, and addresses and CIDRs of clients that have no request limits.
	Exempt []string `key:"exempt"`
}

// Audit limits the log of decisions.
type Audit struct {
	// Entries are deleted after this time, and the oldest of more than 100,000 earlier.
	Keep time.Duration `key:"keep" default:"365d" min:"24h"`
}

// Window holds the clock differences that the node accepts in messages (AM-20).
type Window struct {
	// How old a message may be.
	Past time.Duration `key:"past" default:"15m" min:"1ms" max:"24h"`
	// How far in the future the time of a message may be.
	Future time.Duration `key:"future" default:"5m" min:"1ms" max:"24h"`
}

// Registration decides how the directory accepts cards (AM-56, AM-58).
type Registration struct {
	// open (any bearer token becomes the card's credential), invite (a code from `agentmesh token create`), or closed
	// (nobody).
	Mode string `key:"mode" default:"open" oneof:"open,invite,closed"`
	// Cards per credential. 0: no limit. The local profile has no limit.
	CardsPerToken int `key:"cards_per_token" default:"10"`
	// Cards per endpoint host. 0: no limit. The local profile has no limit.
	CardsPerHost int `key:"cards_per_host" default:"10"`
	// Registrations per hour and client address. 0: no limit. The local profile has no limit.
	PerHour int `key:"per_hour" default:"20"`
	// How long a registration lasts without a renewal, 1d to 365d. Nodes renew after half of it. A change applies to each
	// card from its next renewal on.
	Lifetime time.Duration `key:"lifetime" default:"30d" min:"1d" max:"365d"`
}

// Site tells readers of the public pages who runs the directory.
type Site struct {
	// The title of the pages, 1 to 100 characters. Empty: AgentMesh directory.
	Name string `key:"name"`
	// A mail address, a URL, or another way to reach the operator.
	Contact string `key:"contact"`
	// The terms of use: a URL, or the text itself, at most 20000 characters.
	Terms string `key:"terms"`
	// A PNG, JPEG or WebP file of at most 256 KiB for the head of each page. A relative path starts at the folder of the
	// configuration.
	Logo string `key:"logo"`
}

// Discovery decides what the directory tells other registries.
type Discovery struct {
	// ARD base URLs (…/ard) of other registries, such as mirrors of this directory. A search names them to clients that
	// ask for referrals. If this directory is itself a mirror, it also names the directory that it mirrors.
	Referrals []string `key:"referrals"`
}

// Network holds the settings for connections of the process with the network.
type Network struct {
	// CIDRs of private networks in which the node may call agents, also over http.
	// Danger: anyone who can put a card into your directory can then direct requests to these networks.
	AllowPrivate []netip.Prefix `key:"allow_private"`
	// CIDRs of reverse proxies whose X-Forwarded-For the process trusts. Empty: with a public_url and without tls,
	// connections from this machine count as the proxy's, provided that nobody else can connect. The word none: never
	// trust the header; you need this behind a TCP tunnel. With an https public_url and without tls, the process accepts
	// plain HTTP only from the proxies and from this machine.
	TrustedProxies trustedProxies `key:"trusted_proxies"`
	// Origins of web pages that may call the listener.
	CORSOrigins []string `key:"cors_origins"`
	// The maximum number of simultaneous connections.
	MaxConnections int `key:"max_connections" default:"10000"`
	// The maximum number of simultaneous connections from one address, in the public profile. One network never gets more
	// than half of max_connections.
	MaxConnectionsPerAddress int `key:"max_connections_per_address" default:"256"`
	// Address and port on which this process takes requests for bridges from the other processes with the same store,
	// such as 10.0.0.5:7201. They connect to this address, over plain HTTP, so it must be in a private network. Empty:
	// while this process runs the bridges, the others answer requests for bridges with 503.
	ForwardListen string `key:"forward_listen"`
}

// OwnerAPI configures the loopback listener of the owner's API.
type OwnerAPI struct {
	// A loopback address and port for the API. Clients need the token in the file owner.token of the data directory.
	// Empty: only the Unix socket.
	Listen string `key:"listen"`
	// Host names that the API answers to, besides loopback names.
	Hosts []string `key:"hosts"`
	// The owner's page also answers at public_url, to phones that agentmesh page --phone has set up. Danger: the page can then
	// be reached from everywhere; it opens, and each form is carried out, only with a passkey of such a phone.
	Phone bool `key:"phone"`
}

// AgentDoor configures the door for the owner's agent. Socket and TokenFile must lie outside the data directory: a user
// who can open files there can also open the owner's socket.
type AgentDoor struct {
	// The path of the Unix socket, for agents that serve does not start itself; its hooks have a door without it. Empty: no
	// socket.
	Socket string `key:"socket"`
	// The group that may use the socket and read the token file, a name or a number, if the agent runs as another user.
	// The user of agentmesh must be in it. Empty: only the user of agentmesh.
	Group string `key:"group"`
	// A file with a token for clients of owner_api.listen that may use this door only. The process makes the file if it
	// does not exist. Empty: no token.
	TokenFile string `key:"token_file"`
}

// Log configures the log.
type Log struct {
	// debug, info, warn or error.
	Level string `key:"level" default:"info" oneof:"debug,info,warn,error"`
	// text, json, or auto: text if standard error is a terminal, otherwise JSON.
	Format string `key:"format" default:"auto" oneof:"auto,text,json"`
}

// Default returns the configuration that applies if nothing is set.
func Default() Config {
	var c Config
	setDefaults(reflect.ValueOf(&c).Elem())
	c.TLS.Authority = LetsEncrypt
	c.Calendar.Hours = calendar.DefaultHours
	c.Conversations.MaxBytes = 8 << 30
	c.MinFreeDisk = 64 << 20
	bounds := rules.DefaultAutonomy
	c.Autonomy = Autonomy{
		Conversation: Turns(bounds.Conversation), Door: Turns(bounds.Door), Peer: Turns(bounds.Peer),
		Strangers: Turns(bounds.Strangers), Token: Turns(bounds.Token), Total: Turns(bounds.Total),
	}
	return c
}

const (
	day = 24 * time.Hour

	// RoleDirectory and RoleNode are the roles of a process.
	RoleDirectory = "directory"
	RoleNode      = "node"
)

// Public reports whether the process runs in the public profile (AM-82).
func (c Config) Public() bool { return c.PublicURL != "" }

// Profile returns the name of the profile: public or local.
func (c Config) Profile() string {
	if c.Public() {
		return "public"
	}
	return "local"
}

// Has reports whether the process has a role.
func (c Config) Has(role string) bool { return slices.Contains(c.Roles, role) }
