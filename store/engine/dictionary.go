package engine

// dictionary precedes every row that is packed, so that even the first of its texts can refer to something. It has what
// most rows have: the members of cards, messages, conversations and records, and the beginnings of terms. Changing it
// changes the format of rows.
const dictionary = `cap:entry:agentmeshintent:mesh.scheduleintent:mesh.request_infointent:mesh.negotiateintent:mesh.handoffintent:mesh.message` +
	`check:keycheck:endpointcheck:alivename:word:host:.examplewww.token:` +
	`peer:am_state:openstate:activestate:donestate:newconv:am_/conv_needs-ownerpending:node` +
	`{"agentmesh":"0.1.0","agent_id":"am_","name":"","description":"","endpoint":"https:///agentmesh","public_key":"` +
	`-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA=\n-----END PUBLIC KEY-----\n","capabilities":["intents":["mesh.schedule","mesh.message",` +
	`"mesh.request_info","mesh.negotiate","mesh.handoff"]}` +
	`{"derived":true,"proven":"endpoint":"alive":"probed":"2026-"misses":1,"key_proof":"current":{"public_key":"","since":"2026-"proof":"` +
	`"retired":[{"principal":"am_","state":"active","bytes":"intent":"mesh.message","idle":"opened":"2026-"last":"2026-"deadline":"` +
	`"wrote_first":true,"mine":1,"turns":"heard":"msg_","heard_intent":"mesh.message"}` +
	`{"id":"in_01a","state":"new","kind":"message","peer":"am_","peer_name":"","principal":"address":"","conversation_id":"conv_",` +
	`"message_id":"msg_","intent":"mesh.message","payload":{"action":"deliver","message":{"body":"","priority":"normal","subject":"` +
	`"}},"verified":"signature","trust":"","action_known":true,"at":"2026-"note":"pending":"approved":"ask":"digest":"` +
	`","expires":"2026-"origin":"credential:"reply":{"deferred":"due":"2026-"raw":"signer":"awaits":"` +
	`{"agentmesh":"0.1.0","message_id":"msg_","conversation_id":"conv_","from":"am_","to":"am_","timestamp":"2026-` +
	`T00:00:00.000Z","intent":"mesh.message","in_reply_to":"msg_","payload":{"action":"received"},"payload":{"action":"deliver",` +
	`"message":{"subject":"","body":"","priority":"normal"}},"text":"title":"times":["duration":"location":"conditions":` +
	`{"action":"propose","proposal":{"action":"accept","proposal_id":"action":"counter"{"action":"reject","reason":"` +
	`=="}"error":{"code":"","message":"","retryable":false}},"signature":"`
