package daemon

import (
	"context"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/zone"
	"github.com/agentmesh/agentmesh/store"
)

func (p *Process) newNotifier() (*notify.Box, error) {
	c := p.cfg.Notify
	quiet, err := notify.ParseQuiet(c.Quiet, zone.Owner())
	if err != nil {
		return nil, err
	}
	cfg := notify.Config{
		Records: p.store.Records(), Content: notify.Content(c.Content), Kinds: c.Kinds, Urgent: c.Urgent, Quiet: quiet,
		Batch: c.Batch, Logger: p.log,
	}
	switch {
	case len(c.Command) > 0:
		cfg.Target = notify.Command{Argv: p.src.ResolveCommand(c.Command), Format: notify.Format(c.Format)}
	case c.Webhook != "":
		hook := notify.Webhook{URL: c.Webhook, Format: notify.Format(c.Format), HTTP: p.http}
		if err := p.setSecrets(&hook); err != nil {
			return nil, err
		}
		cfg.Target = hook
	}
	return notify.New(cfg), nil
}

// setSecrets sets the webhook's secrets, if it has any: those of Standard Webhooks, or the bearer token for ntfy.
func (p *Process) setSecrets(hook *notify.Webhook) error {
	text, err := p.src.Secret("webhook", p.cfg.Notify.SecretFile)
	if err != nil {
		return err
	}
	if hook.Format == notify.Ntfy {
		hook.Token = client.Credential(text)
		return nil
	}
	hook.Secrets, err = client.ParseWebhookSecrets(text)
	return err
}

// notifyOwner stores a notice to the owner, in a transaction of its own. It logs an error.
func (p *Process) notifyOwner(ctx context.Context, n notify.Notice) {
	if err := p.store.Records().Apply(ctx, []store.Change{p.notices.Change(n)}, n.At); err != nil {
		p.log.ErrorContext(ctx, "notice not stored; the owner will not see it", "err", err)
	}
}
