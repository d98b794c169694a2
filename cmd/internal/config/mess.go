package config

import "github.com/agentmesh/agentmesh/node/bridge/mess/registry"

// MESS configures the MESS exchange of this process. Agents ask the exchange for something in the physical world, and
// people, robots and services claim the requests.
type MESS struct {
	// Serve the exchange to others under /api/v1/exchanges/<exchange>: on, off, or auto, which means on without a
	// public_url. agentmesh bridge enable mess sets it.
	Serve string `key:"serve" default:"off" oneof:"auto,on,off"`
	// Id of the exchange and part of every API key: A-Z a-z 0-9 and -.
	Exchange string `key:"exchange" default:"home"`
	// How executors register: open, approval (a key works after you approve it), or invite. Empty: open without a
	// public_url, otherwise approval. Danger: a working key may claim every request that it has the capabilities for.
	Registration string `key:"registration" oneof:",open,approval,invite"`
	// File with the bearer token that executors need to register. Only for the registration mode invite.
	InviteFile string `key:"invite_file"`
	// Folder in which the exchange also keeps its threads as MESSE-AF files. Danger: anyone who can write to this folder
	// can act under any name.
	Directory string `key:"directory"`
	// Folder of files that your own requests may name by file://. The files become attachments before a request leaves.
	// Empty: such a reference stays text.
	Attachments string `key:"attachments"`
	// Calls per minute and key. 0: no limit.
	CallsPerMinute int `key:"calls_per_minute" default:"600"`
	// New threads per hour and requester. 0: no limit.
	ThreadsPerHour int `key:"threads_per_hour" default:"300"`
	// Registrations per hour and address. 0: no limit.
	RegistrationsPerHour int `key:"registrations_per_hour" default:"60"`
}

func (c MESS) check(p *problems) {
	if !registry.ValidExchangeID(c.Exchange) {
		p.add("mess.exchange", "must be 1 to 64 characters from A-Z a-z 0-9 -")
	}
	if (c.Registration == "invite") != (c.InviteFile != "") {
		p.add("mess.invite_file", "must be set if, and only if, mess.registration is invite")
	}
}
