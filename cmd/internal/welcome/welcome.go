// Package welcome prints what agentmesh serve runs and how to use it.
package welcome

import (
	"cmp"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

// Stopping is the text after ctrl-c on a terminal.
const Stopping = "\nstopping; ctrl-c again stops it at once"

// PrintForPerson tells a person at a terminal what runs, and prints the link in signIn to the owner's page.
func PrintForPerson(u *terminal.UI, w daemon.ServeInfo, c daemon.Certificate, signIn httpapi.SignIn) {
	rows := [][2]string{{"open", signIn.Link()}, {"", u.Command("works once, until " + signIn.Expires.Local().Format("15:04") + "; agentmesh page prints a new link")}}
	for _, r := range [][2]string{
		{"agent", string(w.AgentID)}, {"endpoint", w.Endpoint}, {"directory", w.Directory}, {"listens", listener(w, c)}, {"data", w.Data},
	} {
		if r[1] != "" {
			rows = append(rows, r)
		}
	}
	u.Frame(cmp.Or(w.Name, "agentmesh")+" is running, ctrl-c stops it", rows)
}

// PrintForScript prints the addresses of the process, and commands to try. It is for a standard output that is not a
// terminal, and for a mirror.
func PrintForScript(u *terminal.UI, w daemon.ServeInfo, c daemon.Certificate) {
	var rows [][]string
	for _, r := range [][]string{
		{"  directory", w.Directory}, {"  node", w.Endpoint}, {"  agent", string(w.AgentID)}, {"  name", w.Name}, {"  data", w.Data},
		{"  owner API", w.Socket + " (used by the other commands)"}, {"  and on", w.OwnerAPI}, {"  listening on", listener(w, c)},
	} {
		if r[1] != "" {
			rows = append(rows, r)
		}
	}
	u.Print("agentmesh is running in the %s profile, ctrl-c stops it", w.Profile)
	u.Table(rows)
	u.Print("")
	u.Print("try, in another terminal:")
	if w.Directory != "" {
		u.Print("  curl '%s/agents?capability=scheduling'", w.Directory)
	}
	if w.Endpoint != "" {
		u.Print("  curl %s", w.Endpoint)
		u.Print("  %s", u.Command("agentmesh page"))
	}
	if w.Directory != "" && w.AgentID != "" {
		u.Print("  curl %s/agents/%s", w.Directory, w.AgentID)
	}
}

// listener describes the listener of a public node and its certificate, or returns "" in the local profile.
func listener(w daemon.ServeInfo, c daemon.Certificate) string {
	switch {
	case w.Profile != "public":
		return ""
	case !c.TLS:
		return w.Address + " without TLS: your reverse proxy must terminate TLS"
	case !c.NotAfter.IsZero():
		return w.Address + " with TLS, certificate until " + terminal.FormatTime(c.NotAfter)
	case c.Error != "":
		return w.Address + " with TLS, but nobody can connect yet: " + terminal.Clean(c.Error)
	}
	return w.Address + " with TLS, waiting for the certificate"
}
