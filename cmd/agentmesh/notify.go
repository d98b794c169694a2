package main

import (
	"context"
	"fmt"
	"net/url"
	"regexp"
	_ "time/tzdata" // the time zones of quiet hours, where the machine has none

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/store"
)

var noticeKind = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// check says what is wrong with how the owner is told.
func (c NotifyConfig) check(p *problems) {
	p.oneOf("notify.content", c.Content, "summary", "none")
	p.oneOf("notify.format", c.Format, "json", "text", "ntfy")
	switch u, err := url.Parse(c.Webhook); {
	case c.Webhook != "" && len(c.Command) > 0:
		p.add("notify", "has both a command and a webhook")
	case c.Webhook != "" && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http"):
		p.add("notify.webhook", "must be an absolute http or https URL without user")
	case c.Format == "ntfy" && c.Webhook == "":
		p.add("notify.format", "ntfy needs a webhook")
	}
	if c.SecretFile != "" && c.SecretEnv != "" {
		p.add("notify", "has both secret_file and secret_env")
	}
	if _, err := notify.ParseQuiet(c.Quiet, c.Zone); err != nil {
		p.add("notify.quiet", err.Error())
	}
	for key, kinds := range map[string][]string{"notify.kinds": c.Kinds, "notify.urgent": c.Urgent} {
		for _, k := range kinds {
			if !noticeKind.MatchString(k) {
				p.add(key, fmt.Sprintf("%q is no kind of notice", k))
			}
		}
	}
}

// notifier makes what tells the owner.
func (p *process) notifier() (*notify.Box, error) {
	c := p.cfg.Notify
	quiet, err := notify.ParseQuiet(c.Quiet, c.Zone)
	if err != nil {
		return nil, err
	}
	cfg := notify.Config{
		Records: p.store.Records(), Content: notify.Content(c.Content), Kinds: c.Kinds, Urgent: c.Urgent, Quiet: quiet,
		Batch: c.Batch, Logger: p.log,
	}
	switch {
	case len(c.Command) > 0:
		cfg.Target = notify.Command{Argv: p.app.argv(c.Command), Format: notify.Format(c.Format)}
	case c.Webhook != "":
		hook := notify.Webhook{URL: c.Webhook, Format: notify.Format(c.Format), HTTP: p.http}
		if c.SecretFile+c.SecretEnv != "" {
			if err := p.sign(&hook); err != nil {
				return nil, err
			}
		}
		cfg.Target = hook
	}
	return notify.New(cfg), nil
}

// sign gives the webhook its secrets: those of the Standard Webhooks, or a bearer.
func (p *process) sign(hook *notify.Webhook) error {
	lines, err := p.app.secretLines(p.cfg.Notify.SecretFile, p.cfg.Notify.SecretEnv)
	if err != nil {
		return err
	}
	if hook.Format == notify.Ntfy {
		hook.Token = client.Credential(lines[0])
		return nil
	}
	for _, line := range lines {
		secret, err := client.ParseWebhookSecret(line)
		if err != nil {
			return err
		}
		hook.Secrets = append(hook.Secrets, secret)
	}
	return nil
}

// tell gives the owner a notice that belongs to no step.
func (p *process) tell(ctx context.Context, n notify.Notice) {
	if err := p.store.Records().Apply(ctx, []store.Change{p.notices.Change(n)}, n.At); err != nil {
		p.log.ErrorContext(ctx, "store notice", "err", err)
	}
}
