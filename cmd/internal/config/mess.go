package config

import "github.com/agentmesh/agentmesh/node/bridge/mess/exchange"

// MESS is the MESS exchange of this process: where agents ask for something in the physical world, and people,
// robots and services claim it.
type MESS struct {
	// Whether others reach the exchange under /api/v1/exchanges/<exchange>: on, off, or auto, which is on as long as there
	// is no public_url.
	Serve string `key:"serve"`
	// Id of the exchange, part of every API key: A-Z a-z 0-9 and -.
	Exchange string `key:"exchange"`
	// Who may register: open, approval (the key works when you have approved), or invite. Empty: open in the local
	// profile, approval in the public one. Danger: a key that works may claim every request that it has the capabilities for.
	Registration string `key:"registration"`
	// File with the bearer token that invite asks for.
	InviteFile string `key:"invite_file"`
	// Folder that threads are kept in as MESSE-AF files as well. Danger: who may write there acts under any name.
	Directory string `key:"directory"`
	// Folder of the files that your own requests may name by file://; they become attachments before they leave. Empty:
	// such a reference stays text.
	Attachments string `key:"attachments"`
	// Hand requests that nobody here may claim to an agent that the directory lists with all required capabilities, without
	// asking. Danger: strangers' requests leave for agents that you have not chosen.
	Route bool `key:"route"`
	// Send the ntfy, Slack, Google Chat and webhook notifications that executors registered. Danger: they name the URL.
	Notify bool `key:"notify"`
	// Calls a minute of one key. 0 is no limit.
	CallsPerMinute int `key:"calls_per_minute"`
	// New threads an hour of one requester. 0 is no limit.
	ThreadsPerHour int `key:"threads_per_hour"`
	// Registrations an hour of one address. 0 is no limit.
	RegistrationsPerHour int `key:"registrations_per_hour"`
}

func defaultMESS() MESS {
	return MESS{Serve: "auto", Exchange: "home", CallsPerMinute: 600, ThreadsPerHour: 300, RegistrationsPerHour: 60}
}

func (c MESS) check(p *problems) {
	p.oneOf("mess.serve", c.Serve, "auto", "on", "off")
	p.oneOf("mess.registration", c.Registration, "", "open", "approval", "invite")
	if !exchange.ValidExchangeID(c.Exchange) {
		p.add("mess.exchange", "must be 1 to 64 of A-Z a-z 0-9 and -")
	}
	if (c.Registration == "invite") != (c.InviteFile != "") {
		p.add("mess.invite_file", "goes with registration: invite")
	}
}
