"""What errors say in other languages, put into English, so that the rules on words know it.

Errors say the same few things everywhere. A line here is one of them: in the English words that a rule
knows, and as expressions in other languages. Those whose words have no bounds, as in Chinese or Japanese,
are looked for anywhere in a text. Nothing of this is asked while the text itself says something to a rule.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ._rule import lines, normal, unquoted

_MAX_READ = 1_000
_SOME = 2


class Said(NamedTuple):
    """english: what a text says. words: as it says it."""

    english: str
    words: str


def in_english(text: str) -> Said | None:
    """The first thing of the glossary that a text says, None where it says none of them."""
    text = text[:_MAX_READ]
    low = normal(text)
    if text.isascii():
        words = frozenset(low.split())
        if _TELLING.isdisjoint(words) and len(_COMMON & words) < _SOME:
            return None
    bare = _NAMES.sub(" ", unquoted(low))
    for english, pattern in _glossary():
        hit = pattern.search(bare)
        if hit is not None:
            return Said(english, hit[0])
    return None


_NAMES = re.compile(
    "\u201c[^\u201d]{1,80}\u201d|\u300c[^\u300d]{1,80}\u300d|\u300e[^\u300f]{1,80}\u300f|"
    "\u300a[^\u300b]{1,80}\u300b|\u201e[^\u201c]{1,80}\u201c|\u00ab[^\u00bb]{1,80}\u00bb"
)
"""What stands in quotation marks that English has not: a name."""
_TELLING = frozenset({
    "nicht", "kein", "keine", "wurde", "konnte", "fehlt", "verbindung", "abgelehnt", "fehler", "interner",
    "erreur", "connexion", "jeton", "manquant", "invalide", "introuvable", "serveur", "campo",
    "servicio", "servidor", "tiempo", "formato", "credenciales", "herramienta", "interno", "errore",
    "servizio",
    "connessione", "impossibile", "erro", "falha",
})  # fmt: skip
_COMMON = frozenset({
    "ist", "der", "die", "das", "bitte", "est", "une", "pas", "le", "la", "du", "des", "impossible", "el",
    "los", "se", "es", "una", "falta", "cliente", "il", "non", "della", "tente", "os", "uma",
})  # fmt: skip
"""In a text in ASCII one of the first, or two of these, stand in nearly every error of another language.

English has some of the second."""


@cache
def _glossary() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (english, re.compile("|".join(_bounded(line) for line in lines(block)), re.DOTALL))
        for english, block in _BLOCKS
    )


def _bounded(line: str) -> str:
    """The expression of a line; a word of letters with bounds is not looked for within another."""
    return line if _UNBOUNDED.search(line) else rf"(?<!\w)(?:{line})"


_UNBOUNDED = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


_BLOCKS: tuple[tuple[str, str], ...] = (
    (
        "maximum context length exceeded",
        r"""
        超(?:出|过|過).{0,14}(?:上下文|最大长度|token)
        (?:上下文|提示词?).{0,8}(?:超|过长|太长)
        输入(?:内容|文本)?(?:过|太)长
        (?:コンテキスト|トークン数?).{0,14}(?:超え|超過|上限)
        (?:入力|プロンプト)が長すぎ
        (?:컨텍스트|토큰).{0,14}초과
        (?:kontext\w{0,10}|tokens?|eingabe) .{0,40}(?:überschritten|überschreitet|zu lang)
        (?:contexte|jetons|tokens) .{0,40}(?:dépass|trop long)
        (?:contexto|tokens) .{0,40}(?:excedid|superad|excede|supera|ultrapass)
        """,
    ),
    (
        "unknown tool: it",
        r"""
        (?:未知|不存在)的?(?:工具|函数)
        (?:工具|函数).{0,24}(?:不存在|未找到|未注册|不可用)
        (?:ツール|関数).{0,24}(?:見つかりません|存在しません|登録されていません)
        不明な(?:ツール|関数)
        (?:도구|함수).{0,20}(?:찾을 수 없|존재하지 않)
        (?:das |die )?(?:werkzeug|tool|funktion) .{0,40}(?:nicht gefunden|unbekannt|existiert nicht)
        unbekannte[srn]? (?:werkzeug|tool|funktion)
        outil .{0,40}(?:inconnu|introuvable|n'existe pas)
        herramienta .{0,40}(?:no existe|desconocida|no encontrada)
        ferramenta .{0,40}(?:não existe|desconhecida|não encontrada)
        """,
    ),
    (
        "too many requests",
        r"""
        (?:请求|调用|操作|访问)(?:次数)?(?:过于|太|过)?(?:频繁|过多)
        (?:频率|速率|次数|并发).{0,8}(?:超出|超过|超限|上限|限制)
        (?:超出|超过|触发).{0,8}(?:频率|速率|次数|限流|并发)
        被限流
        (?:リクエスト|アクセス|呼び出し).{0,10}(?:多すぎ|制限|上限|集中)
        レート制限
        요청.{0,10}(?:너무 많|한도|초과)
        слишком много запросов
        """,
    ),
    (
        "insufficient quota",
        r"""
        (?:额度|配额|余额).{0,6}(?:不足|已?用完|用尽|耗尽)
        (?:クォータ|利用枠|クレジット).{0,8}(?:超過|不足|使い切)
        (?:guthaben|kontingent) .{0,30}(?:aufgebraucht|erschöpft|reicht nicht)
        (?:crédits?|quota|forfait) .{0,30}(?:insuffisant|épuisé|dépassé)
        (?:cuota|crédito|créditos) .{0,30}(?:insuficiente|agotad|excedid|superad|esgotad)
        """,
    ),
    (
        "certificate verify failed",
        r"""
        证书.{0,8}(?:过期|无效|验证失败|不受信任)
        証明書.{0,10}(?:期限|無効|検証)
        zertifikat .{0,30}(?:abgelaufen|ungültig|nicht vertrau)
        certificat .{0,30}(?:expiré|invalide|non (?:valide|reconnu))
        certificado .{0,30}(?:caducad|expirad|vencid|inválid|no válid)
        """,
    ),
    (
        "authentication failed",
        r"""
        (?:认证|身份验证|鉴权|验证|登录|認證)(?:信息)?(?:失败|失效|过期|已过期|失敗)
        (?:未授权|未登录)
        (?:密钥|令牌|token|api ?key|凭证|密码).{0,6}(?:无效|过期|错误|失效|不正确)
        (?:无效|错误)的?(?:密钥|令牌|token|api ?key|凭证)
        認証(?:に|が|エラー).{0,4}(?:失敗|通りません|必要)?
        (?:api ?キー|トークン|パスワード).{0,10}(?:無効|期限|正しくありません|誤)
        인증.{0,6}(?:실패|오류)
        (?:anmeldung|authentifizierung|authentisierung) .{0,30}(?:fehlgeschlagen|gescheitert)
        ungültige (?:anmeldedaten|zugangsdaten)
        (?:token|schlüssel|passwort|kennwort) .{0,20}(?:ungültig|abgelaufen|falsch)
        échec de (?:l['\u2019 ])?authentification
        authentification .{0,20}(?:échoué|refusée|requise)
        (?:identifiants|jeton|clé(?: d'api)?) .{0,20}(?:invalides?|expirée?|incorrect)
        (?:autenticación|inicio de sesión) .{0,20}(?:fallid|falló|incorrect)
        (?:falló|error de|falha (?:na|de)) (?:la )?(?:autenticación|autenticação)
        credenciales .{0,12}(?:inválidas|incorrectas|no válidas|caducadas)
        credenciais inválidas
        credenziali .{0,12}(?:non valide|errate)
        ошибка (?:аутентификации|авторизации)
        """,
    ),
    (
        "permission denied",
        r"""
        (?:权限不足|没有(?:\w{0,6})权限|无权(?:限|访问)|拒绝访问|访问被拒|權限不足)
        権限が(?:ありません|不足|ない)
        アクセス(?:が|は)?拒否
        권한이 없
        (?:접근|액세스).{0,6}거부
        (?:доступ запрещ|отказано в доступе|недостаточно прав)
        """,
    ),
    (
        "no space left on device",
        r"""
        (?:磁盘|存储)(?:空间)?(?:已满|不足)
        ディスク.{0,10}(?:不足|いっぱい)
        kein (?:freier )?speicherplatz
        espace disque insuffisant
        (?:no (?:queda|hay)|sin) espacio (?:en (?:el )?)?(?:disco|dispositivo)
        """,
    ),
    (
        "could not resolve host",
        r"""
        (?:域名|主机名?).{0,6}(?:解析失败|无法解析)
        无法解析.{0,8}(?:主机|域名)
        名前解決.{0,6}(?:失敗|できません)
        (?:host|rechner)name .{0,30}nicht aufgelöst
        """,
    ),
    (
        "request timed out",
        r"""
        (?:超时|超時|逾时)(?!设置|参数|时间|配置|阈值|值|为)
        タイムアウト(?:しました|した|が発生|エラー|です)
        (?:시간|타임아웃).{0,4}초과
        (?:zeitlimit|frist|wartezeit) .{0,30}(?:überschritten|abgelaufen)
        se (?:agotó|excedió|superó|ha agotado) el tiempo
        (?:время ожидания|таймаут).{0,20}(?:истек|превыш)
        """,
    ),
    (
        "connection refused",
        r"""
        (?:连接|連線|連接).{0,4}(?:被拒绝|被拒|失败|失敗|断开|中断|重置|异常)
        (?:拒绝连接|无法连接|连接不上)
        网络(?:错误|异常|连接失败|不可用|中断)
        (?:接続|通信).{0,4}(?:拒否|できません|失敗|切断|エラー)
        연결.{0,6}(?:거부|할 수 없|실패|끊)
        (?:die )?verbindung .{0,40}(?:abgelehnt|verweigert|fehlgeschlagen|unterbrochen|getrennt|abgebrochen)
        keine verbindung (?:zu|zum|zur|mit|möglich)
        (?:connexion .{0,40}(?:refusée|impossible|interrompue|perdue)|impossible de se connecter|échec de
            (?: la)? connexion)
        conexión .{0,40}(?:rechazada|rehusada|interrumpida|perdida|fallida)
        (?:no se (?:pudo|puede|ha podido) conectar|error de conexión|fallo de conexión)
        (?:conexão .{0,30}(?:recusada|perdida|falhou)|não foi possível conectar)
        (?:connessione .{0,30}(?:rifiutata|negata|interrotta|fallita)|impossibile connettersi)
        (?:соединение .{0,30}(?:отклонено|разорвано|сброшено)|не удалось подключиться)
        """,
    ),
    (
        "internal server error",
        r"""
        (?:服务器|伺服器|系统)(?:内部)?(?:发生)?(?:错误|出错|錯誤|故障)
        内部(?:服务器)?错误
        (?:サーバー?(?:の|で)?(?:内部)?|内部)エラー
        서버.{0,6}오류
        (?:interne[rn]? (?:server)?fehler|serverfehler)
        erreur interne
        (?:error|erro|errore) interno
        внутренняя ошибка
        """,
    ),
    (
        "service unavailable",
        r"""
        (?:服务|服务器|系统|接口|网关).{0,8}(?:不可用|无法使用|繁忙|正忙|维护|没有响应|无响应|过载)
        (?:稍后|稍候).{0,4}(?:再试|重试)
        (?:サービス|システム|サーバー?).{0,16}(?:利用できません|停止し?て?い|ご利用いただけません|応答しません)
        メンテナンス中
        (?:混雑して|混み合って)
        (?:後ほど|しばらく).{0,12}(?:お試し|試して|やり直)
        (?:서비스|서버).{0,10}(?:사용할 수 없|이용할 수 없|응답하지)
        (?:점검 ?중|나중에 다시)
        (?:\w{0,12}(?:dienst|server|service|system|schnittstelle)) .{0,40}(?:nicht (?:erreichbar|verfügbar)|
            überlastet|antwortet nicht|ausgefallen)
        (?:wartungsarbeiten|in wartung)
        service .{0,40}(?:indisponible|inaccessible|saturé)
        (?:est|sont) (?:(?:actuellement|temporairement|momentanément|provisoirement) )?(?:indisponible|
            injoignable|inaccessible|hors service)s?
        réessaye[rz]? (?:plus tard|ultérieurement|dans)
        (?:está|estão) (?:\w{1,16} )?(?:fora do ar|indisponíve(?:l|is))
        tente (?:novamente|de novo) mais tarde
        (?:int[eé]ntelo|inténtalo|vuelva a intentarlo) (?:de nuevo )?más tarde
        versuchen sie es .{0,20}(?:später|erneut)
        riprova(?:re)? più tardi
        (?:попробуйте|повторите) .{0,20}позже
        serveur .{0,40}(?:indisponible|surchargé|injoignable|ne répond pas)
        (?:maintenance en cours|en cours de maintenance)
        (?:servicio|servidor|sistema) .{0,40}(?:no (?:está )?(?:disponible|responde)|saturado|
            sobrecargado|caído|
            en mantenimiento)
        (?:serviço|servidor|sistema) .{0,40}(?:indisponível|não responde|sobrecarregado|em manutenção)
        servizio .{0,40}(?:non (?:è )?(?:al momento )?disponibile|in manutenzione)
        (?:сервис|сервер|служба) .{0,30}(?:недоступ|не отвечает|перегружен)
        """,
    ),
    (
        "no such file or directory",
        r"""
        (?:文件|目录|路径|檔案).{0,8}(?:不存在|未找到)
        找不到.{0,10}(?:文件|目录|路径|檔案)
        (?:ファイル|ディレクトリ|フォルダー?|パス).{0,24}(?:見つかりません|存在しません)
        파일.{0,10}(?:찾을 수 없|존재하지 않)
        (?:файл .{0,40}не найден|нет такого файла)
        """,
    ),
    (
        "resource not found",
        r"""
        (?:用户|订单|客户|记录|页面|资源|数据表?|商品|产品|账户|账号|航班|表).{0,24}(?:不存在|未找到|查无)
        (?:未找到|找不到|查无)(?:该|此|对应|指定|这个)的?(?:用户|订单|客户|记录|页面|资源|表|商品|产品|账户|账号|航班)
        (?:ユーザー?|注文|顧客|レコード|ページ|テーブル|商品|リソース|アカウント).{0,24}(?:見つかりません|存在しません)
        (?:사용자|주문|고객|페이지|테이블|계정).{0,16}(?:찾을 수 없|존재하지 않)
        (?:kund\w{1,3}|benutzer|bestellung|datensatz|tabelle|spalte|seite|artikel|konto|auftrag|buchung)
            .{0,40}(?:nicht gefunden|existiert nicht|gibt es nicht)
        (?:client|utilisateur|commande|table|page|article|compte|réservation) .{0,40}(?:introuvable|
            n'existe pas|non trouvée?)
        (?:cliente|usuario|pedido|tabla|página|artículo|cuenta|reserva|producto) .{0,40}(?:no (?:existe|
            encontrad|se encontró|se ha encontrado|fue encontrad)|inexistente)
        no se (?:encontró|ha encontrado) (?:el|la|ningún|ninguna) (?:cliente|usuario|pedido|tabla|página|
            artículo|cuenta|reserva|producto)
        """,
    ),
    (
        "invalid json",
        r"""
        (?:json|响应|返回).{0,8}(?:解析|格式).{0,4}(?:失败|错误|不正确)
        解析.{0,8}(?:json|响应|输出).{0,4}失败
        json.{0,8}(?:解析|パース|形式).{0,6}(?:失敗|できません|エラー|不正)
        json .{0,40}(?:ungültig|fehlerhaft|nicht (?:gelesen|geparst|verarbeitet))
        json .{0,40}(?:invalide|non valide|mal formé|inválido|no válido|malformado)
        """,
    ),
    (
        "missing required parameter",
        r"""
        (?:缺少|缺失|未提供).{0,8}(?:参数|字段|必填)
        (?:参数|字段|日期|类型|格式).{0,8}(?:缺失|错误|无效|不合法|不正确|不能为空|有误)
        (?:无效|非法|错误)的?(?:参数|日期|格式|请求|类型)
        (?:パラメータ|パラメーター|引数|必須項目|フィールド|日付|形式|フォーマット).{0,14}(?:不足|不正|無効|
            正しくありません|指定されていません|誤)
        (?:매개변수|형식|날짜).{0,10}(?:누락|잘못|올바르지)
        (?:pflichtfeld|parameter|feld|argument|wert|datum|format) .{0,40}(?:fehlt|ungültig|erforderlich)
        ungültige[rsn]? (?:\w{1,20} )?\w{0,20}(?:parameter|wert|format|datum|eingabe|argument)
        (?:paramètre|champ|argument|format|date) .{0,40}(?:manquant|invalide|obligatoire|requis|incorrect)
        (?:parámetro|campo|argumento|formato|fecha|parâmetro|data|formato) .{0,40}(?:inválid|no válid|
            obligatori|requerid|faltante|incorrect|obrigatóri)
        falta (?:el|o) (?:campo|parámetro|argumento|parâmetro)
        """,
    ),
    (
        "rejected by the content filter",
        r"""
        (?:内容|输入|输出).{0,8}(?:违规|敏感|不合规|安全审核|审核未通过)
        (?:敏感(?:内容|词)|违反.{0,12}(?:政策|规定|规范))
        (?:コンテンツ.{0,10}(?:フィルタ|ポリシー)|ポリシー.{0,4}違反|不適切な(?:内容|コンテンツ))
        (?:inhaltsrichtlinie|inhaltsfilter|verstößt gegen .{0,30}richtlinie)
        (?:(?:viole|enfreint) .{0,30}(?:politique|règle)|filtre de contenu)
        (?:(?:viola|infringe|incumple) .{0,30}(?:política|norma)|filtro de contenido)
        """,
    ),
    (
        "maximum number of steps reached",
        r"""
        (?:达到|超过|超出).{0,6}最大(?:步数|轮数|迭代|循环|步骤|对话)
        最大(?:ステップ|反復|ターン).{0,8}(?:達し|超え)
        (?:maximale|höchst)\w{0,2} (?:anzahl|zahl) .{0,30}(?:erreicht|überschritten)
        nombre maximal d['\u2019 ](?:étapes|itérations) .{0,20}(?:atteint|dépassé)
        (?:número|límite) máximo de (?:pasos|iteraciones|turnos) .{0,20}(?:alcanzad|excedid|superad)
        """,
    ),
)
"""Most exact first: "try again later" is said of much."""
