package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/atomicfile"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/signing"
)

type conversationsExportCmd struct {
	conversationArg
	Opened bool   `help:"Include the key of each sealed message, so that anyone who has the file can read these messages."`
	Output string `short:"o" placeholder:"FILE" help:"Write to a file instead of standard output."`
}

func (c *conversationsExportCmd) Run(ctx context.Context, a *app) (err error) {
	o, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	query := owner.Params("peer", c.Peer)
	if c.Opened {
		query.Set("opened", "true")
	}
	resp, err := o.Do(ctx, http.MethodGet, "conversations/"+url.PathEscape(c.ID)+"/export", query, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case c.Output == "" && terminal.IsTerminal(a.Out):
		data, err := io.ReadAll(resp.Body)
		return cmp.Or(err, a.WriteFile(data, "write the export to a file with --output"))
	case c.Output == "":
		_, err = io.Copy(a, resp.Body)
		return err
	}
	err = atomicfile.WriteFunc(c.Output, func(f *os.File) error {
		_, err := io.Copy(f, resp.Body)
		return err
	})
	if err != nil {
		return exit.Fail(exit.Input, err)
	}
	a.Note("wrote %s; check it with: agentmesh verify %s", terminal.Clean(c.Output), terminal.Clean(c.Output))
	return nil
}

type verifyCmd struct {
	File string `arg:"" help:"Export of a conversation or of the audit log, or - for standard input."`
}

// verification is the result of verify.
type verification struct {
	Kind         string        `json:"kind"` // "conversation" or "audit"
	Self         string        `json:"self,omitempty"`
	Peer         string        `json:"peer,omitempty"`
	Conversation string        `json:"conversation_id,omitempty"`
	State        string        `json:"state,omitempty"`
	Exported     time.Time     `json:"exported,omitzero"`
	Entries      uint64        `json:"entries"`
	Signatures   int           `json:"verified_signatures,omitempty"`
	Unsigned     int           `json:"unsigned,omitempty"`
	Sealed       int           `json:"sealed,omitempty"`
	Opened       int           `json:"opened,omitempty"` // number of sealed messages whose key is in the file
	Keys         []verifiedKey `json:"keys,omitempty"`
	Prev         string        `json:"prev,omitempty"`  // hash before the first entry of a log
	Hash         string        `json:"hash,omitempty"`  // hash of the last entry of a log
	First        uint64        `json:"first,omitempty"` // number of the first entry of a log
	Last         uint64        `json:"last,omitempty"`
}

type verifiedKey struct {
	Agent       string `json:"agent_id"`
	Fingerprint string `json:"fingerprint"`
}

func (c *verifyCmd) Run(_ context.Context, a *app) error {
	in, err := a.OpenInput(c.File)
	if err != nil {
		return err
	}
	defer in.Close()
	reader := bufio.NewReaderSize(in, 4<<10)
	head, err := reader.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return exit.Fail(exit.Input, fmt.Errorf("read export: %w", err))
	}
	var v verification
	if strings.Contains(string(head), `"agentmesh_export"`) {
		v, err = verifyConversation(reader)
	} else {
		v, err = verifyLog(reader)
	}
	if errors.Is(err, conversations.ErrExport) {
		err = exit.Fail(exit.No, err)
	}
	if err != nil {
		return err
	}
	return a.report(v, func() { a.showVerification(v) })
}

func verifyConversation(r io.Reader) (verification, error) {
	report, err := conversations.VerifyExport(r)
	if err != nil {
		return verification{}, err
	}
	v := verification{
		Kind: "conversation", Self: string(report.Self), Peer: report.Peer, Conversation: string(report.Conversation),
		State: string(report.State), Exported: report.Exported, Entries: report.Entries,
		Signatures: report.Verified, Unsigned: report.Unsigned, Sealed: report.Sealed, Opened: report.Opened,
	}
	for _, k := range report.Keys {
		key, err := signing.ParsePublicKey(k.PublicKey)
		if err != nil {
			return verification{}, err
		}
		v.Keys = append(v.Keys, verifiedKey{string(k.Agent), key.Fingerprint()})
	}
	return v, nil
}

func verifyLog(r io.Reader) (verification, error) {
	span, err := acl.VerifyAudit(r)
	switch {
	case errors.Is(err, acl.ErrAuditChain):
		return verification{}, exit.FailHint(exit.No, err, "a part of a log cannot be checked: export the log with agentmesh audit --json, without --since, --kind and --peer")
	case err != nil:
		return verification{}, exit.Fail(exit.Input, err)
	case span.Last == 0:
		return verification{}, exit.Fail(exit.Input, errors.New("the log is empty"))
	}
	return verification{Kind: "audit", Entries: span.Last - span.First + 1, First: span.First, Last: span.Last, Prev: span.Prev, Hash: span.Hash}, nil
}

func (a *app) showVerification(v verification) {
	if v.Kind == "audit" {
		a.Print("intact: audit entries %d to %d", v.First, v.Last)
		a.Print("hash before the first entry: %s", terminal.Clean(v.Prev))
		a.Print("hash of the last entry: %s", terminal.Clean(v.Hash))
		return
	}
	a.Print("intact: conversation %s between %s and %s, %s", terminal.Clean(v.Conversation), terminal.Clean(v.Self), terminal.Clean(v.Peer), terminal.Clean(v.State))
	a.Print("%d messages, %d with a valid signature, %d without a signature, exported %s", v.Entries, v.Signatures, v.Unsigned, terminal.FormatTime(v.Exported))
	if v.Sealed > 0 {
		a.Print("%d sealed messages, %d of them with their key in the file", v.Sealed, v.Opened)
	}
	for _, k := range v.Keys {
		a.Print("key of %s: %s", terminal.Clean(k.Agent), terminal.Clean(k.Fingerprint))
	}
	a.Hint("the file cannot prove who owns the keys: compare the fingerprints with the agents' owners")
}
