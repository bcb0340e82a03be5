"""What public Fluid scripts do, in snippets: real Fluid's programs of each are in `tests/fluid_values/programs`.

Names as in the goldens: ``fluid``, ``np``; a snippet may set ``extra``, programs by name.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Final

_CTR = """
L = fluid.layers
dense = fluid.data('dense_input', [None, 13])
slots = [fluid.data('C%d' % i, [None, 1], 'int64', lod_level=1) for i in range(2)]
label = fluid.data('label', [None, 1], 'int64')
"""
_XY = """
L = fluid.layers
x, y = fluid.data('x', [None, 4]), fluid.data('y', [None, 1])
"""
_LOSS = """
loss = L.mean(L.square_error_cost(L.fc(L.fc(x, 3, act='tanh'), 1), y))
"""

_TEXTS: Final[dict[str, str]] = {
    "wide_deep": _CTR
    + """
    embs = [L.sequence_pool(L.embedding(s, [1001, 8], is_sparse=True, param_attr=fluid.ParamAttr(
        name='SparseFeatFactors', initializer=fluid.initializer.Uniform())), 'sum') for s in slots]
    deep = L.concat(embs + [dense], axis=1)
    for i, n in enumerate([16, 8]):
        deep = L.fc(deep, n, act='relu', param_attr=fluid.ParamAttr(
            initializer=fluid.initializer.Normal(scale=1 / np.sqrt(deep.shape[1]))))
    wide = L.fc(dense, 1)
    predict = L.fc([deep, wide], 2, act='softmax')
    cost = L.cross_entropy(predict, label)
    avg_cost = L.reduce_sum(cost)
    accuracy = L.accuracy(predict, label)
    auc_var, batch_auc_var, auc_states = L.auc(predict, label, num_thresholds=2 ** 12, slide_steps=20)
    fluid.optimizer.Adam(1e-4, lazy_mode=True).minimize(avg_cost)
    """,
    "deep_fm": """
    L = fluid.layers
    idx = L.reshape(fluid.data('feat_idx', [None, 5], 'int64'), [-1, 1])
    value = L.reshape(fluid.data('feat_value', [None, 5]), [-1, 5, 1])
    label = fluid.data('label', [None, 1])
    init = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=0.1)
    l2 = fluid.regularizer.L2DecayRegularizer(regularization_coeff=1e-4)
    first = L.reshape(L.embedding(idx, [100, 1], dtype='float32', padding_idx=0, param_attr=fluid.ParamAttr(
        initializer=init, regularizer=l2)), [-1, 5, 1])
    y_first = L.reduce_sum(first * value, 1)
    emb = L.reshape(L.embedding(idx, [100, 6], dtype='float32', padding_idx=0, param_attr=fluid.ParamAttr(
        initializer=init)), [-1, 5, 6]) * value
    second = 0.5 * L.reduce_sum(L.square(L.reduce_sum(emb, 1)) - L.reduce_sum(L.square(emb), 1), 1, keep_dim=True)
    deep = L.reshape(emb, [-1, 30])
    for size in [8, 8]:
        deep = L.dropout(L.fc(deep, size, act='relu', param_attr=fluid.ParamAttr(initializer=init)), 0.5)
    logit = y_first + second + L.fc(deep, 1)
    predict = L.sigmoid(logit)
    avg_cost = L.reduce_sum(L.log_loss(predict, label))
    predict_2d = L.concat([1 - predict, predict], 1)
    auc = L.auc(predict_2d, L.cast(label, 'int64'), slide_steps=0)
    fluid.optimizer.SGD(0.1).minimize(avg_cost)
    """,
    "deep_cross": _CTR
    + """
    x0 = L.concat([dense] + [L.sequence_pool(L.embedding(s, [50, 4]), 'sum') for s in slots], 1)
    x = x0
    for i in range(2):
        w = L.create_parameter([21], dtype='float32', name='cross_w%d' % i)
        b = L.create_parameter([21], dtype='float32', name='cross_b%d' % i, is_bias=True)
        xw = L.reduce_sum(L.elementwise_mul(x, w), dim=1, keep_dim=True)
        x = L.elementwise_add(x0 * xw + b, x, axis=0)
    bn = L.batch_norm(L.fc(x0, 8), act='relu')
    p = L.fc(L.concat([x, bn], 1), 1, act='sigmoid')
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(p, L.cast(label, 'float32')))
    fluid.optimizer.Adam(0.01, regularization=fluid.regularizer.L2Decay(1e-3)).minimize(loss)
    """,
    "esmm": _CTR
    + """
    emb = L.concat([L.sequence_pool(L.embedding(s, [50, 4], param_attr=fluid.ParamAttr(name='emb')), 'average')
                    for s in slots], 1)
    def tower(x, name):
        with fluid.name_scope(name):
            for i in range(2):
                x = L.fc(x, 6, act='relu', name='%s_fc%d' % (name, i))
            return L.fc(x, 2, act='softmax', name=name + '_out')
    ctr, cvr = tower(emb, 'ctr'), tower(emb, 'cvr')
    ctr_one, cvr_one = L.slice(ctr, [1], [1], [2]), L.slice(cvr, [1], [1], [2])
    both = L.elementwise_mul(ctr_one, cvr_one)
    both = L.concat([1 - both, both], 1)
    loss = L.mean(L.cross_entropy(ctr, label) + L.cross_entropy(both, label))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    """,
    "mmoe": _XY
    + """
    experts = [L.fc(x, 4, act='relu', name='expert_%d' % i) for i in range(3)]
    stacked = L.reshape(L.concat(experts, axis=1), [-1, 3, 4])
    losses = []
    for i in range(2):
        gate = L.fc(x, 3, act='softmax', bias_attr=False, name='gate_%d' % i)
        mixed = L.reduce_sum(L.elementwise_mul(stacked, gate, axis=0), dim=1)
        out = L.fc(mixed, 2, act='softmax', name='out_%d' % i)
        out = L.clip(out, min=1e-15, max=1.0 - 1e-15)
        losses.append(L.mean(L.cross_entropy(out, L.cast(y, 'int64'))))
    loss = L.elementwise_add(losses[0], losses[1])
    fluid.optimizer.Adam(learning_rate=0.1).minimize(loss)
    """,
    "din_attention": """
    L = fluid.layers
    hist = fluid.data('hist', [None, 5], 'int64')
    target = fluid.data('target', [None], 'int64')
    mask = fluid.data('mask', [None, 5, 1])
    label = fluid.data('label', [None, 1])
    size = [30, 6]
    h = fluid.embedding(hist, size, param_attr='item_emb')
    t = fluid.embedding(target, size, param_attr='item_emb')
    te = L.expand(L.unsqueeze(t, [1]), [1, 5, 1])
    att = L.fc(L.concat([h, te, h - te, h * te], axis=2), 4, num_flatten_dims=2, act='sigmoid', name='att_1')
    att = L.fc(att, 1, num_flatten_dims=2, name='att_2') + mask
    att = L.softmax(L.scale(L.transpose(att, [0, 2, 1]), scale=6 ** -0.5))
    user = L.reshape(L.matmul(att, h), [0, 6])
    bias = L.reshape(fluid.embedding(target, [30, 1], param_attr=fluid.ParamAttr(name='b',
        initializer=fluid.initializer.Constant(0.0))), [-1, 1])
    logit = L.reduce_sum(L.fc(user, 6) * t, dim=1, keep_dim=True) + bias
    loss = L.mean(L.sigmoid_cross_entropy_with_logits(logit, label))
    rate = L.piecewise_decay(boundaries=[410000], values=[1.0, 0.1])
    fluid.optimizer.SGD(learning_rate=rate).minimize(loss)
    """,
    "gru4rec": """
    L = fluid.layers
    src = fluid.data('src_wordseq', [None, 1], 'int64', lod_level=1)
    dst = fluid.data('dst_wordseq', [None, 1], 'int64', lod_level=1)
    init = fluid.initializer.Uniform(low=-0.1, high=0.1)
    emb = L.embedding(src, [40, 8], param_attr=fluid.ParamAttr(initializer=init, learning_rate=10.0), is_sparse=False)
    proj = L.fc(emb, 24, param_attr=fluid.ParamAttr(initializer=init, learning_rate=1.0))
    gru = L.dynamic_gru(proj, 8, param_attr=fluid.ParamAttr(initializer=init))
    fc = L.fc(gru, 40, act='softmax', param_attr=fluid.ParamAttr(initializer=init))
    cost = L.cross_entropy(fc, dst)
    acc = L.accuracy(fc, dst, k=20)
    loss = L.mean(cost)
    fluid.optimizer.Adagrad(0.01).minimize(loss)
    """,
    "sentiment_lstm": """
    L = fluid.layers
    words = fluid.data('words', [None, 1], 'int64', lod_level=1)
    label = fluid.data('label', [None, 1], 'int64')
    emb = L.embedding(words, [60, 8], is_sparse=True)
    fc1 = L.fc(emb, 16)
    lstm1, cell1 = L.dynamic_lstm(fc1, 16)
    inputs = [fc1, lstm1]
    for i in range(2, 4):
        fc = L.fc(inputs, 16)
        lstm, cell = L.dynamic_lstm(fc, 16, is_reverse=(i % 2) == 0)
        inputs = [fc, lstm]
    pooled = [L.sequence_pool(inputs[0], 'max'), L.sequence_pool(inputs[1], 'max')]
    prediction = L.fc(pooled, 2, act='softmax')
    loss = L.mean(L.cross_entropy(prediction, label))
    acc = L.accuracy(prediction, label)
    extra = {'test': fluid.default_main_program().clone(for_test=True)}
    fluid.optimizer.Adagrad(0.002).minimize(loss)
    """,
    "bow_text": """
    L = fluid.layers
    words = L.data('words', shape=[1], dtype='int64', lod_level=1)
    label = L.data('label', shape=[1], dtype='int64')
    emb = L.embedding(words, [60, 8], padding_idx=0)
    bow = L.tanh(L.sequence_pool(emb, 'sum'))
    h = L.fc(L.fc(bow, 6, act='tanh'), 6, act='tanh')
    p = L.fc(h, 2, act='softmax')
    loss = L.mean(L.cross_entropy(p, label))
    extra = {'test': fluid.default_main_program().clone(for_test=True),
             'pruned': fluid.default_main_program()._prune(targets=[p])}
    fluid.optimizer.Adam(0.002).minimize(loss)
    """,
    "tagspace": """
    L = fluid.layers
    text = L.data('text', [1], dtype='int64', lod_level=1)
    pos, neg = L.data('pos_tag', [1], dtype='int64', lod_level=1), L.data('neg_tag', [1], dtype='int64', lod_level=1)
    t_emb = L.embedding(text, [50, 8], param_attr='text_emb')
    p_emb, n_emb = L.embedding(pos, [9, 8], param_attr='tag_emb'), L.embedding(neg, [9, 8], param_attr='tag_emb')
    conv = L.sequence_conv(L.fc(t_emb, 8), num_filters=6, filter_size=5, act='tanh', param_attr='cnn')
    hid = L.fc(L.sequence_pool(conv, 'max'), 8, param_attr='text_hid')
    cos_pos, cos_neg = L.cos_sim(p_emb, hid), L.cos_sim(hid, n_emb)
    margin = L.fill_constant_batch_size_like(cos_neg, [-1, 1], 'float32', 0.1)
    part = L.elementwise_add(L.elementwise_sub(margin, cos_pos), cos_neg)
    zero = L.fill_constant_batch_size_like(part, [-1, 1], 'float32', 0.0)
    loss = L.mean(L.elementwise_max(part, zero))
    correct = L.mean(L.cast(L.less_than(cos_neg, cos_pos), dtype='float32'))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    """,
    "crf_tagger": """
    L = fluid.layers
    word, mark = [fluid.data(n, [None, 1], 'int64', lod_level=1) for n in ('word', 'mark')]
    target = fluid.data('target', [None, 1], 'int64', lod_level=1)
    embs = [L.embedding(word, [40, 4], param_attr=fluid.ParamAttr(name='emb', trainable=False)),
            L.embedding(mark, [2, 3])]
    h = L.sums([L.fc(e, 6, act='tanh') for e in embs])
    feature = L.sums([L.fc(h, 5), L.fc(embs[1], 5)])
    cost = L.linear_chain_crf(feature, target, param_attr=fluid.ParamAttr(name='crfw', learning_rate=1e-3))
    loss = L.mean(cost)
    path = L.crf_decoding(feature, param_attr=fluid.ParamAttr(name='crfw'))
    fluid.optimizer.SGD(L.exponential_decay(0.01, 100000, 0.5, staircase=True)).minimize(loss)
    """,
    "lenet": """
    L = fluid.layers
    img, label = fluid.data('img', [None, 1, 28, 28]), fluid.data('label', [None, 1], 'int64')
    c1 = fluid.nets.simple_img_conv_pool(img, 20, 5, 2, 2, act='relu')
    c2 = fluid.nets.simple_img_conv_pool(L.batch_norm(c1), 50, 5, 2, 2, act='relu')
    p = L.fc(c2, 10, act='softmax')
    loss = L.mean(L.cross_entropy(p, label))
    extra = {'test': fluid.default_main_program().clone(for_test=True)}
    fluid.optimizer.Momentum(0.01, 0.9, use_nesterov=True).minimize(loss)
    """,
    "resnet_block": """
    L = fluid.layers
    img, label = fluid.data('img', [None, 3, 16, 16]), fluid.data('label', [None, 1], 'int64')
    def conv_bn(x, n, k, s, p, act='relu', bias=False):
        return L.batch_norm(L.conv2d(x, n, k, stride=s, padding=p, act=None, bias_attr=bias), act=act)
    def block(x, n, s):
        short = x if s == 1 else conv_bn(x, n, 1, s, 0, None)
        return L.elementwise_add(conv_bn(conv_bn(x, n, 3, s, 1), n, 3, 1, 1, None), short, act='relu')
    h = block(block(conv_bn(img, 8, 3, 1, 1), 8, 1), 16, 2)
    pool = L.pool2d(h, pool_size=8, pool_type='avg', global_pooling=True)
    out = L.fc(L.flatten(pool), 10)
    loss, prob = L.softmax_with_cross_entropy(out, label, return_softmax=True)
    loss = L.mean(loss)
    fluid.optimizer.Momentum(L.piecewise_decay([10, 20], [0.1, 0.01, 0.001]), 0.9,
        regularization=fluid.regularizer.L2Decay(1e-4)).minimize(loss)
    """,
    "recommender": """
    L = fluid.layers
    uid, gender = [fluid.data(n, [None], 'int64') for n in ('uid', 'gender')]
    title = fluid.data('title', [None, 1], 'int64', lod_level=1)
    score = fluid.data('score', [None, 1])
    usr = [L.fc(fluid.embedding(v, [n, 8], param_attr=n_, is_sparse=True), 8)
           for v, n, n_ in ((uid, 30, 'user_table'), (gender, 2, 'gender_table'))]
    usr = L.fc(L.concat(usr, axis=1), 12, act='tanh')
    mov = fluid.nets.sequence_conv_pool(L.embedding(title, [40, 8]), 6, 3, act='tanh', pool_type='sum')
    mov = L.fc(mov, 12, act='tanh')
    inference = L.cos_sim(X=usr, Y=mov)
    loss = L.mean(L.square_error_cost(L.scale(inference, scale=5.0), score))
    fluid.optimizer.SGD(0.2).minimize(loss)
    """,
    "shared_everything": _XY
    + """
    attr, bias = fluid.ParamAttr(name='w', regularizer=fluid.regularizer.L1Decay(0.01)), fluid.ParamAttr(name='b')
    h = x
    for i in range(3):
        h = L.fc(h, 4, act='relu', param_attr=attr, bias_attr=bias)
    once = L.fc(L.scale(h, 2.0, bias=1.0), 1, param_attr=fluid.ParamAttr(name='v'))
    twice = L.fc(x, 1, param_attr=fluid.ParamAttr(name='v'))
    loss = L.mean(L.abs(once - twice - y))
    fluid.optimizer.RMSProp(0.1, rho=0.9, momentum=0.5, centered=True).minimize(loss)
    """,
    "clip_by_value": _XY
    + _LOSS
    + """
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(max=0.5, min=-0.25))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "clip_by_norm_sparse": """
    L = fluid.layers
    ids, y = fluid.data('ids', [None, 1], 'int64'), fluid.data('y', [None, 1])
    p = L.fc(L.embedding(ids, [20, 4], is_sparse=True), 1)
    loss = L.mean(L.square_error_cost(p, y))
    clip = fluid.clip.GradientClipByNorm(clip_norm=1.0)
    fluid.optimizer.Adagrad(0.1, grad_clip=clip, regularization=fluid.regularizer.L2Decay(0.1)).minimize(loss)
    """,
    "optimizers": _XY
    + """
    made = [fluid.optimizer.SGD(0.1), fluid.optimizer.Momentum(0.1, 0.9), fluid.optimizer.Adagrad(0.1, epsilon=1e-5),
            fluid.optimizer.Adam(0.1, beta1=0.8), fluid.optimizer.Adamax(0.1), fluid.optimizer.DecayedAdagrad(0.1),
            fluid.optimizer.Adadelta(0.1), fluid.optimizer.RMSProp(0.1), fluid.optimizer.Ftrl(0.1, l1=0.1, l2=0.1),
            fluid.optimizer.Lamb(0.1), fluid.optimizer.LarsMomentum(0.1, 0.9)]
    for i, optimizer in enumerate(made):
        w = L.create_parameter([4, 1], 'float32', name='w%d' % i)
        loss = L.mean(L.square_error_cost(L.mul(x, w), y))
        optimizer.minimize(loss, parameter_list=['w%d' % i])
    """,
    "schedules": _XY
    + _LOSS
    + """
    rates = [L.noam_decay(8, 10), L.exponential_decay(0.1, 5, 0.5), L.natural_exp_decay(0.1, 5, 0.5, True),
             L.inverse_time_decay(0.1, 5, 0.5), L.polynomial_decay(0.1, 5, 0.01, 2.0), L.cosine_decay(0.1, 5, 3)]
    rate = L.linear_lr_warmup(L.sums(rates), 4, 0.0, 0.1)
    fluid.optimizer.SGD(rate).minimize(loss)
    """,
    "model_average": _XY
    + _LOSS
    + """
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    average = fluid.optimizer.ModelAverage(0.15, min_average_window=2, max_average_window=20)
    extra = {'apply': average.apply_program}
    """,
    "gradients_and_renames": _XY
    + """
    w = L.create_parameter([4, 4], 'float32', name='w')
    a = L.mul(x, w)
    b, c = L.relu(a), L.tanh(a)
    d = L.elementwise_mul(b, c)
    x.stop_gradient = False
    total = L.reduce_sum(d + a)
    grads = fluid.gradients([total], [x, w])
    loss = L.mean(L.square_error_cost(L.fc(d, 1), y)) + 0.1 * L.mean(c)
    pairs = fluid.backward.append_backward(loss, parameter_list=['fc_0.w_0', 'fc_0.b_0'])
    """,
    "stop_gradient": _XY
    + """
    frozen = L.fc(x, 4, param_attr=fluid.ParamAttr(name='frozen', trainable=False))
    h = L.fc(frozen, 4, act='relu')
    h.stop_gradient = True
    branch = L.fc(h, 4)
    other = L.fc(L.assign(x), 4)
    loss = L.mean(L.square_error_cost(L.fc(branch + other, 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss, no_grad_set={'fc_3.b_0'})
    """,
    "dropped_readers": _XY
    + """
    w = L.create_parameter([4], 'float32', name='w')
    product = L.elementwise_mul(x, w)
    both = L.elementwise_add(x, x)
    both.stop_gradient = False
    loss = L.mean(both * product) + L.mean(L.tanh(both)) + L.mean(both * both)
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "later_passes": _XY
    + """
    x.stop_gradient = False
    first, second = L.reduce_sum(L.tanh(x)), L.reduce_sum(L.tanh(y))
    assert fluid.gradients([first], [y]) == [] and fluid.gradients([second], [y]) == []
    assert fluid.gradients([first], [y, x])[0] is None
    y.stop_gradient = False
    fluid.gradients([second], [y])
    fluid.gradients([first], [x])
    extra = {'copy': fluid.default_main_program().clone()}
    with fluid.program_guard(extra['copy']):
        block = extra['copy'].global_block()
        fluid.gradients([block.var(second.name)], [block.var('y')])
    """,
    "two_losses": _XY
    + """
    h = L.fc(x, 4, act='sigmoid', name='body')
    first = L.mean(L.square_error_cost(L.fc(h, 1, name='first'), y))
    second = L.mean(L.abs(L.fc(h, 1, name='second') - y))
    fluid.optimizer.SGD(0.1).minimize(first, parameter_list=['body.w_0', 'body.b_0', 'first.w_0', 'first.b_0'])
    fluid.optimizer.Adam(0.1).minimize(second)
    """,
    "scopes_and_clones": _XY
    + """
    with fluid.name_scope('outer'):
        with fluid.name_scope('inner'):
            h = L.dropout(L.fc(x, 4, act='relu'), 0.3, seed=7)
        with fluid.name_scope('inner'):
            h = L.dropout(h, 0.3, dropout_implementation='upscale_in_train')
    loss = L.mean(L.square_error_cost(L.fc(h, 1), y))
    before = fluid.default_main_program().clone(for_test=True)
    optimizer = fluid.optimizer.SGD(0.1)
    pairs = optimizer.backward(loss)
    optimizer.apply_gradients(pairs)
    extra = {'before': before, 'after': fluid.default_main_program().clone(for_test=True)}
    """,
    "math_of_variables": _XY
    + """
    z = (x * 2.0 + 1.0) / 3.0 - x ** 2.0
    z = 1.0 - (2.0 / (z + 5.0)) + (-z)
    less = L.cast(x < z, 'float32') + L.cast(x == z, 'float32') * L.cast(x >= y, 'float32')
    less.stop_gradient = True
    top, where = L.topk(z, k=2)
    pieces = L.split(z, num_or_sections=[1, 3], dim=1)
    stacked = L.stack([pieces[0], y], axis=0)
    hot = L.one_hot(L.cast(y, 'int64'), 5)
    picked = L.gather(z, L.cast(L.reshape(y, [-1]), 'int32'))
    loss = L.mean(L.reduce_sum(z * less, 1, keep_dim=True) * L.reduce_max(top, 1, keep_dim=True)
                  + L.reduce_prod(stacked, 0)) + L.reduce_mean(L.log(L.exp(picked))) + L.reduce_sum(hot)
    pairs = fluid.backward.append_backward(loss)
    """,
    "static_rnn": """
    L = fluid.layers
    x, y = fluid.data('x', [5, 3, 4]), fluid.data('y', [3, 1])
    projected = L.fc(x, 4, num_flatten_dims=2)
    rnn = L.StaticRNN()
    with rnn.step():
        word = rnn.step_input(projected)
        prev = rnn.memory(shape=[-1, 4], batch_ref=word)
        hidden = L.fc([word, prev], 4, act='tanh')
        rnn.update_memory(prev, hidden)
        rnn.step_output(hidden)
    last = L.reshape(L.slice(rnn(), [0], [4], [5]), [3, 4])
    loss = L.mean(L.square_error_cost(L.fc(last, 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "dynamic_rnn": """
    L = fluid.layers
    words, y = fluid.data('words', [None, 1], 'int64', lod_level=1), fluid.data('y', [None, 1])
    emb = L.embedding(words, [20, 4])
    rnn = L.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(emb)
        prev = rnn.memory(shape=[4], value=0.0)
        hidden = L.fc([word, prev], 4, act='tanh')
        rnn.update_memory(prev, hidden)
        rnn.output(hidden)
    loss = L.mean(L.square_error_cost(L.fc(L.sequence_last_step(rnn()), 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "while_sum": _XY
    + """
    i = L.fill_constant([1], 'int64', 0)
    i.stop_gradient = True
    n = L.fill_constant([1], 'int64', 3)
    array = L.array_write(L.fc(x, 4), L.zeros([1], 'int64'))
    cond = L.less_than(i, n)
    loop = L.While(cond)
    with loop.block():
        h = L.array_read(array, i)
        h = L.fc(h, 4, act='relu', param_attr='loop_w', bias_attr=False)
        L.increment(i, value=1, in_place=True)
        L.array_write(h, i, array)
        L.less_than(i, n, cond=cond)
    loss = L.mean(L.square_error_cost(L.fc(L.array_read(array, i), 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "moving_average": _XY
    + _LOSS
    + """
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()
    """,
    "loop_in_a_loop": _XY
    + """
    i, n = L.fill_constant([1], 'int64', 0), L.fill_constant([1], 'int64', 2)
    outer = L.array_write(x, i)
    cond = L.less_than(i, n)
    loop = L.While(cond)
    with loop.block():
        j = L.fill_constant([1], 'int64', 0)
        inner = L.array_write(L.array_read(outer, i), j)
        again = L.less_than(j, n)
        inside = L.While(again)
        with inside.block():
            h = L.fc(L.array_read(inner, j), 4, act='sigmoid', param_attr='w', bias_attr='b')
            L.increment(j)
            L.array_write(h, j, array=inner)
            L.less_than(j, n, cond=again)
        L.increment(i)
        L.array_write(L.array_read(inner, n), i, array=outer)
        L.less_than(i, n, cond=cond)
    loss = L.mean(L.square_error_cost(L.fc(L.array_read(outer, n), 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "attention_in_a_recurrence": """
    L = fluid.layers
    words, y = fluid.data('words', [None, 4], lod_level=1), fluid.data('y', [None, 1])
    source = fluid.data('source', [None, 3], lod_level=1)
    rnn = L.DynamicRNN()
    with rnn.block():
        word, encoded = rnn.step_input(words), rnn.static_input(source)
        state = rnn.memory(shape=[3], value=0.1)
        query = L.sequence_expand(L.fc(state, 3, bias_attr=False), encoded)
        weights = L.sequence_softmax(L.fc([encoded, query], 1, act='tanh'))
        seen = L.sequence_pool(L.elementwise_mul(encoded, L.reshape(weights, [-1]), axis=0), 'sum')
        rnn.update_memory(state, L.fc([word, seen], 3, act='tanh'))
        rnn.output(state)
    loss = L.mean(L.square_error_cost(L.fc(L.sequence_last_step(rnn()), 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "if_else": _XY
    + """
    one = L.fill_constant_batch_size_like(y, [-1, 1], 'float32', 1)
    choice = L.IfElse(L.less_than(y, one))
    with choice.true_block():
        choice.output(L.fc(choice.input(x), 2))
    with choice.false_block():
        choice.output(L.fc(choice.input(x), 2, act='tanh'))
    loss = L.mean(L.square_error_cost(L.fc(choice()[0], 1), y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
    "convolutions": """
    L = fluid.layers
    image, volume = fluid.data('image', [None, 4, 7, 6]), fluid.data('volume', [None, 2, 4, 5, 4])
    label = fluid.data('label', [None, 1], 'int64')
    parts = [
        L.conv2d(image, 4, 3, 2, 1, groups=2), L.conv2d(image, 8, 3, groups=4, use_cudnn=False),
        L.conv2d(image, 4, [3, 2], padding='SAME', act='relu'),
        L.conv2d(image, 4, 3, padding=[[0, 0], [0, 0], [1, 0], [2, 1]], bias_attr=False),
        L.conv2d_transpose(image, 4, filter_size=3, stride=2, padding=1, groups=2, dilation=2),
        L.pool2d(image, 3, 'avg', 2, 1, ceil_mode=True, exclusive=False), L.adaptive_pool2d(image, [3, 2], 'avg'),
        L.conv3d(volume, 4, 3, 2, 1), L.conv3d_transpose(volume, 2, filter_size=3, stride=2),
        L.pool3d(volume, 2, 'max', 2), L.adaptive_pool3d(volume, 2),
    ]
    joined = L.concat([L.flatten(part) for part in parts], 1)
    loss = L.mean(L.center_loss(L.reshape(L.reduce_sum(joined, 1), [-1, 1]), label, 3, 0.1, fluid.ParamAttr(name='c')))
    fluid.optimizer.SGD(0.1).minimize(loss)
    """,
}
SNIPPETS: Final = {
    name: dedent("\n".join(line.removeprefix("    ") for line in text.splitlines())).strip() + "\n"
    for name, text in _TEXTS.items()
}
