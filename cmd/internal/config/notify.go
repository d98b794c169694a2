package config

import (
	"fmt"
	"net/url"
	"regexp"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
)

// Notify configures how the node notifies its owner. At most one of command and webhook is set.
type Notify struct {
	// A program and its arguments. It gets each batch of notices on standard input.
	Command []string `key:"command"`
	// A URL of yours that gets each batch by POST. It may be on this machine.
	Webhook string `key:"webhook"`
	// json (for a command, one line per notice; for a webhook, one document), text (for people), or ntfy (a webhook in the
	// form that ntfy expects: the text, with title and priority in headers).
	Format string `key:"format" default:"json" oneof:"json,text,ntfy"`
	// File with the secrets that sign the webhook (whsec_…, one per line), or with the bearer token that ntfy requires.
	SecretFile string `key:"secret_file"`
	// The base URL, without a path, at which browsers reach the pages /owner/link/… of owner_api.listen, such as the URL
	// of your reverse proxy or of tailscale serve. Notices then contain a link that decides one question, once. Danger:
	// a reader of such a notice can read the question and decide it. Empty: no links.
	PageURL string `key:"page_url"`
	// Kinds of notices that the node sends: approval, message, outgoing, question, handoff, expiring, unanswered, agreed,
	// cancelled, closed, key-change, unreadable (a sealed message that could not be opened), hook-failed, interrupted,
	// undelivered, delayed (a message keeps failing), unknown, reply-unverified, calendar (an event could not be written to it), listing (a directory will
	// soon stop listing you), removed (the operator of a directory removed your card), reported (somebody reported a card of your directory), personal (personal data left over a
	// bridge), mew-invited (somebody was invited to one of your spaces), and the kinds of bridges. Empty: all.
	Kinds []string `key:"kinds"`
	// Hours in which the node sends only urgent kinds, such as 22:00-07:00 in owner.zone. It sends the other notices
	// afterwards.
	Quiet string `key:"quiet"`
	// Kinds that the node sends in quiet hours too, such as handoff and expiring.
	Urgent []string `key:"urgent"`
	// How long the node collects notices before it sends them as one batch.
	Batch time.Duration `key:"batch" default:"10s" min:"1ms"`
	// The content of a notice: summary (for an agreed meeting, its title, time and place) or none.
	Content string `key:"content" default:"summary" oneof:"summary,none"`
}

// noticeKind matches the name of a kind of notice.
var noticeKind = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// PageHost returns the host name in PageURL, or "".
func (c Notify) PageHost() string {
	u, err := url.Parse(c.PageURL)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// check adds the problems of the keys to p. listen is owner_api.listen.
func (c Notify) check(p *problems, listen string) {
	switch u, err := url.Parse(c.Webhook); {
	case c.Webhook != "" && len(c.Command) > 0:
		p.add("notify", "has both a command and a webhook")
	case c.Webhook != "" && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http"):
		p.add("notify.webhook", "must be an absolute http or https URL without user")
	case c.Format == "ntfy" && c.Webhook == "":
		p.add("notify.format", "ntfy needs a webhook")
	}
	switch u, err := url.Parse(c.PageURL); {
	case c.PageURL == "":
	case err != nil || u.Host == "" || *u != (url.URL{Scheme: u.Scheme, Host: u.Host}) || u.Scheme != "https" && !(u.Scheme == "http" && client.IsLoopbackURL(u)):
		p.add("notify.page_url", "must be an https URL with only a host, such as https://agent.example")
	case listen == "":
		p.add("notify.page_url", "needs owner_api.listen, such as 127.0.0.1:3149")
	}
	if _, err := notify.ParseQuiet(c.Quiet, time.UTC); err != nil {
		p.add("notify.quiet", err.Error())
	}
	for key, kinds := range map[string][]string{"notify.kinds": c.Kinds, "notify.urgent": c.Urgent} {
		for _, k := range kinds {
			if !noticeKind.MatchString(k) {
				p.add(key, fmt.Sprintf("%q cannot be a kind of notice: use a-z, 0-9 and -", k))
			}
		}
	}
}
