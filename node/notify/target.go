package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Target delivers notices to the owner. Send returns nil once the batch is delivered, and must return when ctx ends.
// After an error or a crash, Send may get the same notices again, with newer ones in the same batch.
type Target interface {
	Name() string // for status and log; contains no secret
	Send(ctx context.Context, b Batch) error
}

// Batch holds the notices that are sent together.
type Batch struct {
	ID      string // the same for a further attempt with the same content
	Notices []Notice
	More    int  // further notices that are only counted
	Urgent  bool // at least one listed notice is urgent
}

// Title returns a title without text of peers, so that it may be used in a header.
func (b Batch) Title() string {
	if n := len(b.Notices) + b.More; n > 1 {
		return fmt.Sprintf("AgentMesh: %d notices", n)
	}
	return "AgentMesh: " + strings.ReplaceAll(b.Notices[0].Kind, "-", " ")
}

// Text returns the batch for people, with a line for each notice and for its link.
func (b Batch) Text() string {
	var s strings.Builder
	for _, n := range b.Notices {
		s.WriteString(n.Title)
		if n.Text != "" {
			s.WriteString(": " + n.Text)
		}
		s.WriteByte('\n')
		if n.Link != "" {
			s.WriteString(n.Link + "\n")
		}
	}
	if b.More > 0 {
		fmt.Fprintf(&s, "and %d more\n", b.More)
	}
	return s.String()
}

// Format is the format in which a target gets a batch.
type Format string

const (
	JSON Format = "json" // for a command: one object per line; for a webhook: one document
	Text Format = "text" // a line for each notice and for its link
	Ntfy Format = "ntfy" // for a webhook of ntfy: the text, with title and priority in headers
)

// Command passes notices to a program of the owner on standard input.
type Command struct {
	Argv   []string
	Env    []string // the whole environment; see [subprocess.Command]
	Format Format
}

var _ Target = Command{}

// Name returns the name of the program.
func (c Command) Name() string { return "command " + c.Argv[0] }

// Send runs the program. An exit status other than 0 is an error.
func (c Command) Send(ctx context.Context, b Batch) error {
	input := []byte(b.Text())
	if c.Format != Text {
		input = nil
		for _, n := range b.Notices {
			input = append(append(input, wire.MustMarshal(n)...), '\n')
		}
	}
	result, err := subprocess.Command{Argv: c.Argv, Env: c.Env, MaxOutput: 64 << 10}.Run(ctx, input)
	if err != nil && result.Tail != "" {
		return fmt.Errorf("%w: %s", err, wire.OneLine(result.Tail, 200))
	}
	return err
}

// Webhook posts notices to a URL of the owner. Any host is allowed, including loopback.
type Webhook struct {
	URL     string
	Format  Format
	Secrets []client.WebhookSecret // sign the request (Standard Webhooks)
	Token   client.Credential      // if the receiver requires one
	HTTP    *client.HTTP
}

var _ Target = Webhook{}

// Name returns the host of the URL without the path, which may be a secret, such as a topic of ntfy.
func (w Webhook) Name() string {
	req, err := http.NewRequest(http.MethodPost, w.URL, nil)
	if err != nil {
		return "webhook"
	}
	return "webhook " + req.URL.Host
}

// Send makes one call. Only a 2xx status counts as success.
func (w Webhook) Send(ctx context.Context, b Batch) error {
	body, contentType := []byte(b.Text()), "text/plain; charset=utf-8"
	if w.Format == JSON || w.Format == "" {
		body, contentType = b.document(), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is not valid")
	}
	req.Header = client.WebhookHeader(b.ID, body, w.Secrets, time.Now())
	req.Header.Set("Content-Type", contentType)
	if w.Token != "" {
		req.Header.Set("Authorization", "Bearer "+string(w.Token))
	}
	if w.Format == Ntfy {
		req.Header.Set("Title", b.Title())
		req.Header.Set("Priority", map[bool]string{true: "high", false: "default"}[b.Urgent])
		if len(b.Notices) == 1 && b.Notices[0].Link != "" {
			req.Header.Set("Click", b.Notices[0].Link)
		}
	}
	resp, err := w.HTTP.Do(ctx, client.Owner, req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, because its path may be a secret
		}
		return fmt.Errorf("call %s: %w", w.Name(), err)
	}
	const maxAnswer = 64 << 10
	_, _ = client.ReadAll(resp, maxAnswer) // only the status counts
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%s answered HTTP %d", w.Name(), resp.StatusCode)
	}
	return nil
}

func (b Batch) document() []byte {
	list := make([]wire.Value, len(b.Notices))
	for i, n := range b.Notices {
		list[i] = wire.Obj(
			wire.TextField("id", n.ID), wire.TextField("kind", n.Kind), wire.TextField("title", n.Title),
			wire.TextField("text", n.Text), wire.TextField("at", wire.FormatTime(n.At)),
		).WithOptional("peer", string(n.Peer)).WithOptional("conversation_id", string(n.Conversation)).
			WithOptional("ask", n.Ask).WithOptional("link", n.Link)
	}
	return wire.Obj(
		wire.Member{Key: "type", Value: wire.Text("agentmesh.notices")},
		wire.Member{Key: "title", Value: wire.Text(b.Title())},
		wire.Member{Key: "more", Value: wire.Int(int64(b.More))},
		wire.Member{Key: "urgent", Value: wire.Bool(b.Urgent)},
		wire.Member{Key: "notices", Value: wire.Arr(list...)},
	).JSON()
}
